// A table that sorts, filters, opens rows and can be walked with the arrow keys.
import { Fragment, type ComponentChildren } from "preact";
import { useMemo, useState } from "preact/hooks";
import { count, written, type Unit } from "./format.ts";
import { useKept } from "./kept.ts";
import type { Client } from "./client.ts";

export type Cell = string | number | boolean | null | undefined;

export interface Column<R> {
  key: string;
  label: string;
  kind?: Unit;
  says?: string; // for the header: the meaning of the column
  wide?: boolean; // left out where the cell is narrow
  wider?: boolean; // and where it is of usual width
  value: (row: R) => Cell; // the sort key
  draw?: (row: R) => ComponentChildren;
}

export interface Sort {
  key: string;
  down: boolean;
}

export interface TableProps<R> {
  client: Client;
  name: string; // for a screen reader, and as the key of saved state
  rows: readonly R[];
  columns: readonly Column<R>[];
  id: (row: R) => string | number;
  head?: string | undefined; // the column that names a row, and opens or selects it; the first if it is not given
  empty?: string;
  filter?: string | undefined;
  words?: (row: R) => string; // text for the filter, besides the columns
  detail?: ((row: R) => ComponentChildren | null) | undefined;
  opened?: ((row: R) => boolean) | undefined; // whether its detail is open until somebody closes it
  sort?: Sort | null;
  selected?: ((row: R) => boolean) | undefined;
  onSelect?: ((row: R) => void) | undefined;
  first?: number; // how many rows are drawn before "more" is pressed
}

// Unknown values come last in both directions; equal rows keep their order.
export function sorted<R>(rows: readonly R[], value: (row: R) => Cell, down: boolean): R[] {
  const sign = down ? -1 : 1;
  return [...rows].sort((a, b) => {
    const x = value(a) ?? null;
    const y = value(b) ?? null;
    if (x === null || y === null) return Number(x === null) - Number(y === null);
    if (typeof x === "string" || typeof y === "string") {
      return sign * String(x).localeCompare(String(y), undefined, { numeric: true });
    }
    return sign * (Number(x) - Number(y));
  });
}

// Rows that have every word of the filter; a word that begins with "-" must not be there.
export function filtered<R>(rows: readonly R[], filter: string, words: (row: R) => string): readonly R[] {
  const wanted = filter.toLowerCase().split(/\s+/).filter(Boolean);
  if (wanted.length === 0) return rows;
  return rows.filter((row) => {
    const text = words(row).toLowerCase();
    return wanted.every((w) => (w.length > 1 && w.startsWith("-") ? !text.includes(w.slice(1)) : text.includes(w)));
  });
}

const shown = <R,>(column: Column<R>, row: R): ComponentChildren => {
  if (column.draw) return column.draw(row);
  return written(column.value(row), column.kind ?? "text");
};

const width = ({ wide, wider }: { wide?: boolean; wider?: boolean }): string => (wider ? "wider" : wide ? "wide" : "");

const numeric = ({ kind = "text" }: { kind?: Unit }): boolean => kind !== "text" && kind !== "code";

export function Table<R>(props: TableProps<R>) {
  const { client, name, rows, columns, id, detail, selected, onSelect } = props;
  const head = columns.find((column) => column.key === props.head) ?? columns[0];
  const [sort, setSort] = useKept<Sort | null>(client, `${name}: sort`, props.sort ?? null);
  const [pressed, setPressed] = useKept<ReadonlyMap<string | number, boolean>>(client, `${name}: open`, new Map());
  const opens = (row: R): boolean => pressed.get(id(row)) ?? props.opened?.(row) ?? false;
  const [limit, setLimit] = useState(props.first ?? 200);
  const words = props.words;
  const found = useMemo(() => {
    const text = (row: R): string =>
      [...columns.map((c) => c.value(row)), words?.(row)].filter((v) => v != null).join(" ");
    const some = filtered(rows, props.filter ?? "", text);
    const column = sort && columns.find((c) => c.key === sort.key);
    return column ? sorted(some, column.value, sort.down) : some;
  }, [rows, columns, props.filter, sort, words]);

  const press = (column: Column<R>): void => {
    const again = sort?.key === column.key;
    setSort({ key: column.key, down: again ? !sort.down : numeric(column) });
  };
  const toggle = (row: R): void => setPressed(new Map([...pressed, [id(row), !opens(row)]]));
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label={name}>
      <table aria-label={name} aria-rowcount={found.length}>
        <thead>
          <tr>
            {columns.map((column) => (
              <th
                key={column.key}
                scope="col"
                class={`${numeric(column) ? "num" : ""} ${width(column)}`}
                aria-sort={sort?.key === column.key ? (sort.down ? "descending" : "ascending") : "none"}
              >
                {column.label && ( // that of the rows' buttons has none, and does not sort
                  <button type="button" title={column.says} onClick={() => press(column)}>
                    {column.label}
                    <span aria-hidden="true">{sort?.key === column.key ? (sort.down ? " ▾" : " ▴") : ""}</span>
                  </button>
                )}
              </th>
            ))}
          </tr>
        </thead>
        <tbody onKeyDown={walk}>
          {found.slice(0, limit).map((row) => {
            const key = id(row);
            const more = detail?.(row) ?? null;
            const isOpen = more !== null && opens(row);
            return (
              <Fragment key={key}>
                <tr
                  data-id={key}
                  aria-selected={selected ? selected(row) : undefined}
                  onClick={onSelect && (() => onSelect(row))}
                >
                  {columns.map((column) => (
                    <td
                      key={column.key}
                      class={`${numeric(column) ? "num" : column === head ? "name" : ""} ${width(column)}`}
                    >
                      {column === head && detail && (
                        <button
                          type="button"
                          class="open"
                          aria-expanded={isOpen}
                          aria-label={`Details of ${String(column.value(row))}`}
                          disabled={more === null}
                          onClick={(event) => {
                            event.stopPropagation();
                            toggle(row);
                          }}
                        >
                          {more === null ? "" : isOpen ? "▾" : "▸"}
                        </button>
                      )}
                      {column === head && onSelect ? (
                        <button type="button" class="link">
                          {shown(column, row)}
                        </button>
                      ) : (
                        shown(column, row)
                      )}
                    </td>
                  ))}
                </tr>
                {isOpen && (
                  <tr class="detail">
                    <td colSpan={columns.length}>
                      <div class="within">{more}</div>
                    </td>
                  </tr>
                )}
              </Fragment>
            );
          })}
        </tbody>
      </table>
      {found.length === 0 && <p class="dim none">{rows.length ? "No row has these words." : (props.empty ?? "Nothing yet.")}</p>}
      {found.length > limit && (
        <button type="button" onClick={() => setLimit(limit * 4)}>
          {count(found.length - limit)} more
        </button>
      )}
    </div>
  );
}

// Up and down go from a row's button to the next row's.
function walk(event: KeyboardEvent): void {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const from = event.target as HTMLElement;
  if (step === undefined || from.tagName !== "BUTTON") return;
  const selector = from.classList.contains("open") ? "button.open:not(:disabled)" : "button.link";
  const all = [...(event.currentTarget as HTMLElement).querySelectorAll<HTMLElement>(selector)];
  const next = all[all.indexOf(from) + step];
  if (!next) return;
  event.preventDefault();
  next.focus();
}
