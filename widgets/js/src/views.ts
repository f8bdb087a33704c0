// The drawing code's front door: finds the HTML of a view in the page and draws the live form in its place.
import { draw } from "./frame.tsx";
import { Client } from "./client.ts";
import type { Model } from "./host.ts";

const clients = new WeakMap<Model, Client>();

// The page's outputs come and go (a cell runs again, a notebook shows only the cells in sight): one observer for all
// views looks for new places after each change.
const seekers = new Set<() => void>();
let due = false;
const observer = new MutationObserver(() => {
  if (due) return;
  due = true;
  requestAnimationFrame(() => {
    due = false;
    for (const seek of [...seekers]) seek();
  });
});

function clientOf(model: Model): Client {
  let client = clients.get(model);
  if (!client) clients.set(model, (client = new Client(model)));
  return client;
}

// Draws in the shadow of `element`: its contents are hidden, and the page's styles do not apply inside.
export function show(model: Model, element: HTMLElement): () => void {
  // JupyterLab looks at every key first, and sees of a shadow only the element around it: without this it would take the
  // letters that are typed into a view for its own commands.
  element.dataset["lmSuppressShortcuts"] = "true";
  return draw(clientOf(model), element.shadowRoot ?? element.attachShadow({ mode: "open" }));
}

// Draws wherever the page has this model's HTML, now and later.
export function start(model: Model, signal?: AbortSignal): void {
  const places = document.getElementsByClassName(`jaxtorch-view-${String(model.get("view_id"))}`);
  const shown = new Map<Element, () => void>();
  const seek = (): void => {
    for (const [element, undo] of shown) {
      if (element.isConnected) continue;
      shown.delete(element);
      undo();
    }
    for (const element of places) {
      if (!shown.has(element)) shown.set(element, show(model, element as HTMLElement));
    }
  };
  seekers.add(seek);
  observer.observe(document.body, { childList: true, subtree: true });
  seek();
  signal?.addEventListener("abort", () => {
    seekers.delete(seek);
    if (seekers.size === 0) observer.disconnect();
  });
}
