// The part of anywidget's model that is used here, and what the drawing code gives the shell.

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
