// The sections of a page (`widgets/page.py`), each drawn from its description alone.
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { charts } from "./charts/index.ts";
import type { Client } from "./client.ts";
import { written } from "./format.ts";
import type { Action, Charts, Column, Facts, File, Notes, Page, Row, Section, Table as TableSection } from "./generated.ts";
import { Lines } from "./lines.tsx";
import { Act, download, breakable } from "./parts.tsx";
import type { Json } from "./protocol.ts";
import { Table, type Column as TableColumn } from "./table.tsx";

export type Id = Row["id"];

// What belongs together is marked together: ids of rows, which charts and tables share.
export interface Marks {
  chosen: readonly Id[];
  press: (ids: readonly Id[]) => void;
}

export interface SectionProps<S = Section> {
  section: S;
  client: Client;
  rows?: readonly Row[]; // of a table, where they travel beside it
  filter?: string;
  marks?: Marks;
}

export function SectionView(props: SectionProps) {
  const { section } = props;
  switch (section.type) {
    case "facts":
      return <FactsView {...section} />;
    case "notes":
      return <NotesView {...section} />;
    case "table":
      return <Rows {...props} section={section} />;
    case "code":
      return <Lines {...props} section={section} shown={shown} />;
    case "chart": {
      const Drawing = charts[section.kind as keyof Charts];
      return <Drawing data={section.data as never} marks={props.marks} />;
    }
  }
}

// A sentence; text between backticks is code, unless their number is odd.
const withCode = (sentence: string): ComponentChildren => {
  const pieces = sentence.split("`");
  return pieces.length % 2 ? pieces.map((text, i) => (i % 2 ? <code>{text}</code> : text)) : sentence;
};

// No hooks in the next three: the tests call them without a page.
export function Heading({ page, children }: { page: Page; children?: ComponentChildren }) {
  return (
    <>
      {page.warnings.map((text) => (
        <p class="notice" role="status" key={text}>
          {text}
        </p>
      ))}
      <div class="bar">
        <span class="title">{page.title}</span>
        {page.facts.map((fact) => (
          <span class="badge" key={fact}>
            {fact}
          </span>
        ))}
        {children}
      </div>
      {page.finding && <p class="finding">{withCode(page.finding)}</p>}
    </>
  );
}

export function FactsView({ facts }: Pick<Facts, "facts">) {
  return (
    <dl>
      {facts.map(({ name, lines, code }) => (
        <>
          <dt>{name}</dt>
          <dd class={code ? "mono" : undefined}>
            {lines.length > 6 ? (
              <details>
                <summary>{lines.length} lines</summary>
                {lines.map((line) => (
                  <div>{line}</div>
                ))}
              </details>
            ) : (
              lines.map((line) => <div>{line}</div>)
            )}
          </dd>
        </>
      ))}
    </dl>
  );
}

export function NotesView({ notes }: Pick<Notes, "notes">) {
  return (
    <>
      {notes.map(({ text, more }) => (
        <p class="notice">
          {withCode(text)}
          {more.map((line) => (
            <div class="dim">{withCode(line)}</div>
          ))}
        </p>
      ))}
    </>
  );
}

const value = (row: Row, key: string): Json | undefined => (row as unknown as Record<string, Json>)[key];

const WHOLE = 16; // letters of code that stay on one line, such as a shape

// A value in its unit; an estimate is marked, and a long text folds.
export function shown(row: Row, column: Column): ComponentChildren {
  const text = written(value(row, column.key), column.unit);
  if (text && column.mark && value(row, column.mark)) return <span title="inferred, not measured">~{text}</span>;
  if (column.unit !== "code") return text;
  if (text.length <= WHOLE) return <span class="mono whole">{text}</span>;
  if (text.length < 100) return <span class="mono">{breakable(text)}</span>;
  return (
    <details>
      <summary class="mono">{text.slice(0, 40)} …</summary>
      <span class="mono">{breakable(text)}</span>
    </details>
  );
}

function Rows({ section, client, rows = section.rows, filter, marks }: SectionProps<TableSection>) {
  const columns: TableColumn<Row>[] = section.columns.map((column) => ({
    key: column.key,
    label: column.label,
    kind: column.unit,
    says: column.help,
    wide: column.wide,
    wider: column.wider,
    value: (row) => value(row, column.key) as string | number | null,
    draw: (row) => shown(row, column),
  }));
  const head = columns.find((c) => c.kind === "text" || c.kind === "code") ?? columns[0];
  if (section.numbered) {
    const place = new Map(rows.map((row, i) => [row.id, i + 1]));
    columns.unshift({ key: "#", label: "#", kind: "count", value: (row) => place.get(row.id) });
  }
  const buttons = (row: Row) =>
    section.actions
      .filter(({ when }) => !when || value(row, when))
      .map((action) => <Button key={action.label} {...{ action, client, row }} of={String(head?.value(row) ?? row.id)} />);
  // The buttons of rows that open are below them, beside what else is there.
  const opens = rows.some((row) => row.detail.length) || (section.actions.length > 0 && section.actions.every((a) => !a.when));
  if (section.actions.length && !opens) {
    columns.push({ key: "actions", label: "", value: () => null, draw: buttons });
  }
  return (
    <>
      <Table
        client={client}
        name={section.name || section.title}
        rows={rows}
        columns={columns}
        head={head?.key}
        id={(row) => row.id}
        filter={filter}
        words={(row) => row.search_text}
        opened={(row) => row.opened}
        empty={section.empty}
        selected={section.selects && marks ? (row) => marks.chosen.includes(row.id) : undefined}
        onSelect={section.selects && marks ? (row) => marks.press([row.id]) : undefined}
        detail={
          opens
            ? (row) =>
                row.detail.length || section.actions.length ? (
                  <>
                    {row.detail.map((inner, i) => (
                      <SectionView key={i} section={inner} client={client} />
                    ))}
                    <div class="bar">
                      <span class="space" />
                      {buttons(row)}
                    </div>
                  </>
                ) : null
            : undefined
        }
      />
      {section.omitted && <p class="dim">{section.omitted}</p>}
    </>
  );
}

// A button of a page, or of a row. What the kernel answers is shown, or downloaded.
export function Button({ action, client, row, of }: { action: Action; client: Client; row?: Row; of?: string }) {
  const [answer, setAnswer] = useState<Section | null>(null);
  const run = async (): Promise<void> => {
    const found = await client.ask<Json>(action.ask, { ...action.arguments, ...(row && { row: row.id }) });
    const made = found as unknown as File | Section | null;
    if (made?.type === "file") download(made.name, made.text);
    else setAnswer(made);
  };
  return (
    <>
      <Act run={run} label={of && `${action.label}: ${of}`}>
        {action.label}
      </Act>
      {answer && (
        <div class="answer">
          <SectionView section={answer} client={client} />
        </div>
      )}
    </>
  );
}
