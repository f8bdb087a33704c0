// Small pieces that several views have.
import type { ComponentChildren } from "preact";
import { useId, useState } from "preact/hooks";

// A front end's own shortcuts must not receive text typed into a field of a view.
export const keep = (event: KeyboardEvent): void => event.stopPropagation();

export function Filter({ value, set, of }: { value: string; set: (value: string) => void; of: string }) {
  return (
    <input
      type="search"
      value={value}
      placeholder="filter"
      aria-label={`Filter ${of}: words that must be there, or with a minus must not`}
      onInput={(event) => set(event.currentTarget.value)}
      onKeyDown={(event) => {
        if (event.key === "Escape") set("");
        keep(event);
      }}
    />
  );
}

// Code that a narrow column breaks after its punctuation, rather than within a word.
export function breakable(text: string): ComponentChildren {
  return text.split(/(?<=[_.,:=/(){}[\]])(?=[^\s_.,:=/(){}[\]])/).flatMap((part, i) => (i ? [<wbr key={i} />, part] : [part]));
}

// A button whose action may fail: the error is shown beside it.
export function Act({ children, run, label, pressed }: {
  children: ComponentChildren;
  run: () => Promise<unknown> | void;
  label?: string | undefined;
  pressed?: boolean;
}) {
  const [failed, setFailed] = useState("");
  const [busy, setBusy] = useState(false);
  const press = async (event: Event): Promise<void> => {
    event.stopPropagation();
    setFailed("");
    setBusy(true);
    try {
      await run();
    } catch (error) {
      setFailed(error instanceof Error ? error.message : String(error));
    }
    setBusy(false);
  };
  return (
    <>
      <button type="button" aria-label={label} aria-pressed={pressed} aria-busy={busy} onClick={press}>
        {children}
      </button>
      {failed && <span class="bad" role="alert"> {failed}</span>}
    </>
  );
}

export interface Tab {
  key: string;
  label: ComponentChildren;
  body: () => ComponentChildren;
}

// Tabs as ARIA has them: one tab stop, arrows go on.
export function Tabs({ tabs, at, set, label, beside }: {
  tabs: readonly Tab[];
  at: string;
  set: (key: string) => void;
  label: string;
  beside?: ComponentChildren; // in the same row
}) {
  const id = useId();
  const chosen = tabs.find((t) => t.key === at) ?? tabs[0];
  const move = (event: KeyboardEvent): void => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step === undefined || !chosen) return;
    event.preventDefault();
    event.stopPropagation();
    const next = tabs[(tabs.indexOf(chosen) + step + tabs.length) % tabs.length]!;
    set(next.key);
    (event.currentTarget as HTMLElement).querySelector<HTMLElement>(`[data-key="${next.key}"]`)?.focus();
  };
  return (
    <>
      <div class="bar">
        <div class="tabs" role="tablist" aria-label={label} onKeyDown={move}>
          {tabs.map((tab) => (
            <button
              type="button"
              role="tab"
              key={tab.key}
              data-key={tab.key}
              id={`${id}-${tab.key}`}
              aria-selected={tab === chosen}
              aria-controls={`${id}-panel`}
              tabIndex={tab === chosen ? 0 : -1}
              onClick={() => set(tab.key)}
            >
              {tab.label}
            </button>
          ))}
        </div>
        {beside}
      </div>
      {chosen && (
        <div role="tabpanel" id={`${id}-panel`} aria-labelledby={`${id}-${chosen.key}`}>
          {chosen.body()}
        </div>
      )}
    </>
  );
}

// Text into a file, with no server.
export function download(name: string, text: string, type = "text/plain"): void {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

export async function copy(text: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // A page that is not served over https has no clipboard of that kind.
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}
