// The page's end of a view's connection: the current state, and questions with their answers.
import type { Model } from "./host.ts";
import { applied, message, VERSION, type Data, type FromKernel, type Json } from "./protocol.ts";

export type Life = "waiting" | "live" | "ended" | "gone";

export interface Snapshot {
  kind: string;
  data: Data | null;
  life: Life;
  error: string | null;
}

export class Client {
  snapshot: Snapshot = { kind: "", data: null, life: "waiting", error: null };
  private revision = 0;
  private asked = 0;
  private pending = new Map<number, { resolve: (value: Json) => void; reject: (error: Error) => void }>();
  private listeners = new Set<() => void>();

  constructor(private readonly model: Pick<Model, "send" | "on">) {
    model.on("msg:custom", (content) => this.receive(content as FromKernel));
    model.on("comm_live_update", () => this.lost());
    model.on("destroy", () => this.lost());
  }

  // Calls `listener` after each change until the function that it returns is called.
  listen(listener: () => void): () => void {
    if (this.listeners.size === 0 && this.snapshot.life !== "gone") this.model.send(message({ type: "open" }));
    this.listeners.add(listener);
    return () => {
      this.listeners.delete(listener);
      if (this.listeners.size === 0 && this.snapshot.life === "live") this.model.send(message({ type: "close" }));
    };
  }

  ask<T = Json>(ask: string, args: Data = {}): Promise<T> {
    const { life } = this.snapshot;
    if (life === "gone" || life === "ended") {
      return Promise.reject(new Error("the kernel no longer answers for this view: run its cell again"));
    }
    const id = ++this.asked;
    return new Promise<T>((resolve, reject) => {
      this.pending.set(id, { resolve: resolve as (value: Json) => void, reject });
      this.model.send(message({ type: "ask", id, ask, arguments: args }));
    });
  }

  private receive(content: FromKernel): void {
    if (content.type === "bundle") return;
    if (content.v !== VERSION) {
      this.change({ error: `the kernel speaks version ${content.v} of the views' protocol: run the cell again` });
      return;
    }
    switch (content.type) {
      case "state":
        this.revision = content.revision;
        this.change({ kind: content.kind, data: content.data, life: "live", error: null });
        break;
      case "patch":
        if (content.revision <= this.revision) break; // another window asked for the whole state meanwhile
        if (this.snapshot.data === null || content.revision !== this.revision + 1) {
          if (this.listeners.size) this.model.send(message({ type: "open" }));
          break;
        }
        this.revision = content.revision;
        this.change({ data: applied(this.snapshot.data, content.changes), error: null });
        break;
      case "answer":
        this.pending.get(content.id)?.resolve(content.value);
        this.pending.delete(content.id);
        break;
      case "error":
        if (content.id === null) this.change({ error: content.message });
        else this.pending.get(content.id)?.reject(new Error(content.message));
        this.pending.delete(content.id ?? -1);
        break;
      case "end":
        this.change({ life: "ended" });
        break;
    }
  }

  private lost(): void {
    if (this.snapshot.life !== "ended") this.change({ life: "gone" });
    for (const { reject } of this.pending.values()) reject(new Error("the kernel is gone"));
    this.pending.clear();
  }

  private change(part: Partial<Snapshot>): void {
    this.snapshot = { ...this.snapshot, ...part };
    for (const listener of this.listeners) listener();
  }
}
