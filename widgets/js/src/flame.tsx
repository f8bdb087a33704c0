// A tree whose children's times are within their parent's, as nested bars; a press on a bar makes it the whole width.
import { useState } from "preact/hooks";
import { seconds, share } from "./format.ts";

export interface Branch {
  name: string;
  seconds: number;
  backward: number; // of these seconds
  children: readonly Branch[];
}

interface Bar {
  branch: Branch;
  path: string;
  left: number;
  width: number;
  depth: number;
}

// The bars below `top`, as parts of its width; bars narrower than a two-thousandth are omitted.
export function barsOf(top: Branch, path: string): Bar[] {
  const bars: Bar[] = [];
  const add = (branch: Branch, at: string, left: number, width: number, depth: number): void => {
    if (width < 5e-4) return;
    bars.push({ branch, path: at, left, width, depth });
    let next = left;
    for (const child of [...branch.children].sort((a, b) => b.seconds - a.seconds)) {
      const wide = branch.seconds ? (child.seconds / branch.seconds) * width : 0;
      add(child, at ? `${at}/${child.name}` : child.name, next, wide, depth + 1);
      next += wide;
    }
  };
  add(top, path, 0, 1, 0);
  return bars;
}

const ROW = 22;

export function Flame({ tree, whole, label, at, onSelect }: {
  tree: Branch;
  whole: number; // seconds of 100 %
  label: string;
  at: string | null;
  onSelect: (path: string | null) => void;
}) {
  const [top, setTop] = useState<{ branch: Branch; path: string; above: { branch: Branch; path: string }[] }>();
  const shown = top?.branch ?? tree;
  const bars = barsOf(shown, top?.path ?? "");
  const deepest = bars.reduce((most, bar) => Math.max(most, bar.depth), 0);
  return (
    <div role="group" aria-label={label}>
      {top && (
        <div class="bar">
          <button
            type="button"
            onClick={() => {
              const above = top.above.at(-1);
              setTop(above && above.branch !== tree ? { ...above, above: top.above.slice(0, -1) } : undefined);
            }}
          >
            up
          </button>
          <span class="mono">{top.path}</span>
        </div>
      )}
      <div class="flame" style={{ height: `${(deepest + 1) * ROW}px` }}>
        {bars.map((bar) => {
          const { name, seconds: time, backward } = bar.branch;
          const part = share(time / (whole || 1));
          const said = `${name}: ${seconds(time)}, ${part}, ${seconds(backward)} of it backward`;
          return (
            <button
              type="button"
              key={bar.path}
              class="flamebar"
              title={said}
              aria-label={said}
              aria-pressed={at !== null && at === bar.path}
              style={{
                left: `${bar.left * 100}%`,
                width: `calc(${bar.width * 100}% - 1px)`,
                top: `${bar.depth * ROW}px`,
                "--forward": `${time ? 100 * (1 - backward / time) : 100}%`,
              }}
              onClick={() => onSelect(at === bar.path ? null : bar.path)}
              onDblClick={() => {
                if (bar.branch === shown || bar.branch.children.length === 0) return;
                const above = [...(top?.above ?? []), { branch: shown, path: top?.path ?? "" }];
                setTop({ branch: bar.branch, path: bar.path, above });
              }}
            >
              {bar.width > 0.03 && name}
              {bar.width > 0.08 && <span class="part"> {part}</span>}
            </button>
          );
        })}
      </div>
    </div>
  );
}
