// The part of anywidget's model that is used here, and the interface between the drawing code and the shell.

export interface Model {
  readonly widget_manager?: unknown;
  get(name: string): unknown;
  send(content: unknown): void;
  on(event: "msg:custom", listener: (content: { type?: string }, buffers: DataView[]) => void): void;
  on(event: "comm_live_update" | "destroy", listener: () => void): void;
}

export interface Views {
  start(model: Model, signal?: AbortSignal): void;
  show(model: Model, element: HTMLElement): () => void;
}
