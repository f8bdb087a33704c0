// What a notebook may save with each widget: it gets the drawing code from the kernel, once a page, and calls it.
import type { Model, Views } from "./host.ts";

interface Page {
  [hash: string]: Promise<Views>;
}

const page: Page = ((globalThis as Record<symbol, unknown>)[Symbol.for("jaxtorch.views")] ??= {}) as Page;

function views(model: Model): Promise<Views> {
  const hash = model.get("bundle") as string;
  if (page[hash]) return page[hash];
  return new Promise((resolve, reject) => {
    model.on("msg:custom", (content, buffers) => {
      if (content.type !== "bundle") return;
      page[hash] ??= import(URL.createObjectURL(new Blob(buffers as BlobPart[], { type: "text/javascript" })));
      page[hash].then(resolve, reject);
    });
    model.send({ v: 1, type: "bundle" });
  });
}

export default {
  // Runs when the widget opens, shown or not: it makes the HTML of its view live, wherever in the page that is.
  initialize({ model, signal }: { model: Model; signal?: AbortSignal }): void {
    void views(model).then((code) => code.start(model, signal));
  },
  // Runs where an output names the widget: VS Code and Colab.
  render({ model, el }: { model: Model; el: HTMLElement }): () => void {
    let undo: (() => void) | undefined;
    void views(model).then((code) => (undo = code.show(model, el)));
    return () => undo?.();
  },
};
