// The frame of every live form: theme, error line, whether the kernel still answers. It chooses the form by kind.
import { Component, render, type ComponentChildren, type FunctionComponent } from "preact";
import { useEffect, useReducer, useState } from "preact/hooks";
import type { Client, Life } from "./client.ts";
import type { Data } from "./protocol.ts";
import css from "./style.css";
import { theme, watchTheme, type Theme } from "./theme.ts";
import { kinds } from "./views/index.ts";

export interface ViewProps<D = Data> {
  data: D;
  client: Client;
  root: ShadowRoot;
  colours: Theme;
}

let sheet: CSSStyleSheet | undefined;

export function draw(client: Client, root: ShadowRoot): () => void {
  if (!sheet) (sheet = new CSSStyleSheet()).replaceSync(css);
  if (!root.adoptedStyleSheets.includes(sheet)) root.adoptedStyleSheets.push(sheet);
  render(<Frame client={client} root={root} />, root);
  return () => render(null, root);
}

const SAID: Record<Life, string> = {
  waiting: "",
  live: "",
  ended: "This view no longer follows the session. Run its cell again for a new one.",
  gone: "The kernel is gone; this is what was shown last.",
};

function Frame({ client, root }: { client: Client; root: ShadowRoot }) {
  const [, again] = useReducer((n: number, _: null) => n + 1, 0);
  const [colours, setColours] = useState(theme);
  useEffect(() => {
    again(null);
    return client.listen(() => again(null));
  }, [client]);
  useEffect(() => watchTheme(setColours), []);
  const { kind, data, life, error } = client.snapshot;
  const View = kinds[kind] as FunctionComponent<ViewProps> | undefined;
  // The HTML in the page stays visible until the kernel has answered, and for a kind that this code does not know.
  if (data === null || !View) {
    return (
      <>
        {error && <Notice>{error}</Notice>}
        <slot />
      </>
    );
  }
  return (
    <div class="view" data-theme={colours} data-life={life} data-kind={kind}>
      {SAID[life] && <Notice>{SAID[life]}</Notice>}
      {error && <Notice>{error}</Notice>}
      <Guard>
        <View data={data} client={client} root={root} colours={colours} />
      </Guard>
    </div>
  );
}

function Notice({ children }: { children: ComponentChildren }) {
  return (
    <p class="notice" role="status">
      {children}
    </p>
  );
}

// An error while drawing must not leave an empty place: it is named, and the HTML in the page shows again.
class Guard extends Component<{ children: ComponentChildren }, { failed: Error | null }> {
  override state = { failed: null as Error | null };

  override componentDidCatch(error: Error): void {
    this.setState({ failed: error });
  }

  override render() {
    if (this.state.failed === null) return this.props.children;
    return (
      <>
        <Notice>The live form failed ({String(this.state.failed)}); here is the plain one.</Notice>
        <slot />
      </>
    );
  }
}
