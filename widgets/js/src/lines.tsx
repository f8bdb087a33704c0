// Lines of code in their order, each with its figures (`Code` in `widgets/page.py`). Those without are folded at first.
import { pythonLanguage } from "@codemirror/lang-python";
import { highlightCode, tagHighlighter, tags } from "@lezer/highlight";
import type { ComponentChildren } from "preact";
import { useMemo } from "preact/hooks";
import type { Client } from "./client.ts";
import { count } from "./format.ts";
import type { Code, Column, Row } from "./generated.ts";
import { useKept } from "./kept.ts";
import type { Json } from "./protocol.ts";

const value = (row: Row, key: string): Json | undefined => (row as unknown as Record<string, Json>)[key];

const CLASSES = tagHighlighter([
  { tag: tags.comment, class: "code-dim" },
  { tag: [tags.keyword, tags.operatorKeyword, tags.controlKeyword, tags.operator], class: "code-keyword" },
  { tag: tags.string, class: "code-string" },
  { tag: [tags.number, tags.bool, tags.null], class: "code-number" },
  { tag: [tags.typeName, tags.className], class: "code-type" },
  { tag: [tags.function(tags.variableName), tags.definition(tags.variableName)], class: "code-name" },
]);

// The lines of a text in the colours of Python.
export function coloured(text: string): ComponentChildren[][] {
  const lines: ComponentChildren[][] = [[]];
  highlightCode(
    text,
    pythonLanguage.parser.parse(text),
    CLASSES,
    (part, kind) => lines.at(-1)!.push(kind ? <span class={kind}>{part}</span> : part),
    () => lines.push([]),
  );
  return lines;
}

// What is drawn: lines, and the number of those that are folded between them.
export function itemsOf(rows: readonly Row[], wanted: (row: Row) => boolean): (number | { folded: number; at: number })[] {
  const items: (number | { folded: number; at: number })[] = [];
  rows.forEach((row, i) => {
    const last = items.at(-1);
    if (wanted(row)) items.push(i);
    else if (typeof last === "object") last.folded++;
    else items.push({ folded: 1, at: i });
  });
  return items;
}

interface Props {
  section: Code;
  client: Client;
  rows?: readonly Row[] | undefined;
  shown: (row: Row, column: Column) => ComponentChildren;
}

export function Lines({ section, client, rows = section.rows, shown }: Props) {
  const [every, setEvery] = useKept(client, `${section.key}: every`, section.every);
  const [code, ...figures] = section.columns;
  const has = (row: Row): boolean => figures.some(({ key }) => value(row, key) != null);
  const some = rows.some(has);
  const lines = useMemo(() => coloured(rows.map((row) => String(value(row, code!.key) ?? "")).join("\n")), [rows]);
  return (
    <>
      <div class="bar">
        <span class="mono">{section.name}</span>
        <span class="space" />
        {some && !rows.every(has) && (
          <button type="button" aria-pressed={every} onClick={() => setEvery(!every)}>
            all {count(rows.length)} lines
          </button>
        )}
      </div>
      <div class="scroll" tabIndex={0} role="region" aria-label={section.name}>
        <table class="annotated">
          <thead>
            <tr>
              <th class="plain num" scope="col">
                line
              </th>
              <th class="plain code-cell" scope="col">
                code
              </th>
              {figures.map(({ key, label, help }, i) => (
                <th class={`plain num figure${i}`} scope="col" key={key} title={help}>
                  {label}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {itemsOf(rows, (row) => every || !some || has(row)).map((item) =>
              typeof item === "object" ? (
                <tr key={`folded ${item.at}`} class="folded">
                  <td class="num dim">⋮</td>
                  <td class="dim" colSpan={figures.length + 1}>
                    {count(item.folded)} {item.folded === 1 ? "line" : "lines"} without time
                  </td>
                </tr>
              ) : (
                <tr key={rows[item]!.id} data-line={rows[item]!.id}>
                  <td class="num dim">{rows[item]!.id}</td>
                  <td class="code-cell">
                    <code class="text">{lines[item]?.length ? lines[item] : " "}</code>
                  </td>
                  {figures.map((column, i) => (
                    <td class={`num figure${i}`} key={column.key}>
                      {shown(rows[item]!, column)}
                      {column.key === section.heat && <Bar of={Number(value(rows[item]!, column.key) ?? 0)} />}
                    </td>
                  ))}
                </tr>
              ),
            )}
          </tbody>
        </table>
      </div>
    </>
  );
}

// A share of the whole, so that the bars of several sources compare. The text form draws the same.
function Bar({ of }: { of: number }) {
  return (
    <span class="track" aria-hidden="true">
      <span class="share" style={{ width: `${100 * of}%` }} hidden={of === 0} />
    </span>
  );
}
