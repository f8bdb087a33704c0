// `%jax hlo`: the cell's lines beside what was traced, what XLA was given and what it made of it, linked both ways.
import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { Code } from "../code.tsx";
import { bytes, count, amount } from "../format.ts";
import type { ViewProps } from "../frame.tsx";
import { Graph } from "../graph.tsx";
import { useKept } from "../kept.ts";
import { instructionOn, instructionsOf, linksOf } from "../linked.ts";
import { Act, copy, download, Tabs } from "../parts.tsx";
import type { GraphAnswer, HloData, InstructionAnswer, Places, StageAnswer } from "../shapes.ts";
import { Table } from "../table.tsx";
import { AskedDiff } from "./diff.tsx";

type Client = ViewProps["client"];

const NAMES: Record<string, string> = { jaxpr: "jaxpr", stablehlo: "StableHLO", hlo: "Optimized HLO" };

// An answer of the kernel's, asked for once the first time it is needed and kept as long as the view.
const answers = new WeakMap<Client, Map<string, unknown>>();

function useAnswer<T>(client: Client, ask: string, args: Record<string, string | number | null> | null) {
  const key = args && `${ask} ${JSON.stringify(args)}`;
  let known = answers.get(client);
  if (!known) answers.set(client, (known = new Map()));
  const store = known;
  const [, drawn] = useState("");
  const [failed, setFailed] = useState("");
  useEffect(() => {
    setFailed("");
    if (key === null || store.has(key)) return;
    let wanted = true;
    client.ask<T & never>(ask, args!).then(
      (value) => {
        store.set(key, value);
        if (wanted) drawn(key);
      },
      (error: Error) => wanted && setFailed(error.message),
    );
    return () => void (wanted = false);
  }, [key]);
  return { value: (key === null ? undefined : store.get(key)) as T | undefined, failed };
}

export function HloView({ data, client, root }: ViewProps<HloData>) {
  const [tab, setTab] = useKept<string>(client, "tab", data.stage);
  const [lower, setLower] = useKept<string>(client, "lower", "lines");
  const [chosen, setChosen] = useKept<readonly number[]>(client, "chosen", data.line < 0 ? [] : [data.line]); // Ls
  const [instruction, setInstruction] = useKept<string | null>(client, "instruction", null);
  const [places, setPlaces] = useKept<Places>(client, "places", data);
  const [jump, setJump] = useKept<{ code?: number; line?: number }>(client, "jump", {}); // where a link leads to
  const [search, setSearch] = useState(data.grep ? { query: data.grep, key: 1 } : { query: "", key: 0 });

  const isStage = data.stages.includes(tab);
  const { value: stage, failed } = useAnswer<StageAnswer>(client, "stage", isStage ? { stage: tab } : null);
  const links = useMemo(() => stage && linksOf(stage), [stage]);
  const marks = useMemo(() => new Set(chosen), [chosen]);
  const marked = useMemo(() => links?.to(marks) ?? [], [links, marks]);
  const instructions = useMemo(() => (stage?.stage === "hlo" ? instructionsOf(stage.text) : undefined), [stage]);

  // A text that is read may bring lines that nothing pointed to before; the numbers of the others stay.
  useEffect(() => {
    if (stage && stage.lines.length > places.lines.length) setPlaces({ sources: stage.sources, lines: stage.lines });
  }, [stage]);
  // XLA prints what runs first last: of the lines that are linked, one of the entry is the one to see first.
  const entry = useMemo(() => stage?.text.split("\n").findIndex((line) => line.startsWith("ENTRY ")) ?? -1, [stage]);
  const firstOf = (lines: readonly number[]): number | undefined => lines.find((line) => line > entry) ?? lines[0];
  // What was asked for on the line of `%jax hlo`, or chosen in another stage, is brought into sight.
  useEffect(() => {
    if (!stage || jump.code !== undefined) return;
    const first = firstOf(marked) ?? (data.grep ? -1 : entry);
    if (first >= 0) setJump({ ...jump, code: first });
  }, [stage]);

  // The pane in which somebody chose stays as it is: a text that moves under a pressed mouse is selected, not clicked.
  const choose = (next: readonly number[], from: "code" | "source" | "elsewhere"): void => {
    setChosen(next);
    setJump({
      code: from === "code" ? undefined : firstOf(links?.to(new Set(next)) ?? []),
      line: from === "source" ? undefined : next[0],
    });
  };
  const fromCode = (line: number, text: string): void => {
    choose(links?.of(line) ?? [], "code");
    const name = instructions && instructionOn(text);
    if (name) setInstruction(name);
  };
  const toInstruction = (name: string): void => {
    setInstruction(name);
    setTab("hlo");
    const line = instructions?.get(name);
    if (line === undefined) return;
    setChosen(links?.of(line) ?? []);
    setJump({ code: line, line: links?.of(line)[0] });
  };
  const { program } = data;
  const file = `${program.name.replace(/\W+/g, "_")}.${program.id}`;
  return (
    <>
      <Heading data={data} />
      <div class="sides">
        <div class="side">
          {places.sources.map((_, index) => (
            <SourcePane key={index} {...{ index, data, places, marks, root }} at={jump.line} choose={(l) => choose(l, "source")} />
          ))}
          {places.sources.length === 0 && <p class="dim">No line of yours is behind this program.</p>}
        </div>
        <div class="side">
          <Tabs
            label="Stages of compilation"
            at={tab}
            set={(key) => {
              setTab(key);
              setJump({ line: jump.line });
            }}
            tabs={[
              ...data.stages.map((name) => ({
                key: name,
                label: NAMES[name] ?? name,
                body: () =>
                  !stage ? (
                    <p class="dim">{failed || "reading …"}</p>
                  ) : stage.text === "" ? (
                    <p class="dim">Gone: nobody can run this program any more. Keep one with %jax cache --keep.</p>
                  ) : (
                    <>
                      <div class="bar">
                        <span class="dim" role="status">
                          {count(stage.links.length)} lines{marked.length > 0 && `, ${count(marked.length)} linked`}
                        </span>
                        <span class="space" />
                        <button type="button" onClick={() => setSearch({ query: "", key: search.key + 1 })}>
                          search
                        </button>
                        <Act run={() => copy(stage.text)}>copy</Act>
                        <Act
                          run={async () => {
                            const made = await client.ask<{ name: string; text: string }>("download", { stage: name });
                            download(made.name || file, made.text);
                          }}
                        >
                          download
                        </Act>
                      </div>
                      <Code
                        key={name}
                        text={stage.text}
                        language="hlo"
                        label={`${NAMES[name]} of ${program.title}`}
                        root={root}
                        marked={marked}
                        at={jump.code ?? null}
                        onLine={fromCode}
                        search={search}
                      />
                    </>
                  ),
              })),
              ...(data.others.length
                ? [{ key: "diff", label: "Diff", body: () => <AskedDiff data={data} client={client} names={NAMES} /> }]
                : []),
            ]}
          />
        </div>
      </div>
      <Tabs
        label="Of this program"
        at={lower}
        set={setLower}
        tabs={[
          {
            key: "lines",
            label: "By line",
            body: () => <ByLine {...{ data, client, places, marks }} choose={(l) => choose([l], "elsewhere")} />,
          },
          { key: "kinds", label: "By kind", body: () => <ByKind data={data} client={client} /> },
          { key: "fusions", label: `Fusions (${data.fusions.length})`, body: () => <Fusions {...{ data, client, toInstruction }} /> },
          { key: "memory", label: "Memory", body: () => <Buffers data={data} client={client} /> },
          { key: "instruction", label: "Instruction", body: () => <Instruction {...{ client, places }} name={instruction} /> },
          { key: "graph", label: "Graph", body: () => <Neighbourhood {...{ client, instruction, toInstruction }} /> },
        ]}
      />
    </>
  );
}

function Heading({ data }: { data: HloData }) {
  const [operations, transcendentals, moved] = data.total;
  const facts = [
    `${amount(operations)} FLOPs`,
    transcendentals ? `${amount(transcendentals)} transcendental` : "",
    `${bytes(moved)} moved`,
    data.memory ? `${bytes(data.memory.temporary)} temporary` : "",
  ];
  return (
    <div class="bar">
      <span class="title">{data.program.title}</span>
      {facts.filter(Boolean).map((fact) => (
        <span class="badge" key={fact}>
          {fact}
        </span>
      ))}
    </div>
  );
}

interface Part {
  data: HloData;
  client: Client;
}

function SourcePane({ index, data, places, marks, at, choose, root }: {
  index: number;
  data: HloData;
  places: Places;
  marks: ReadonlySet<number>;
  at: number | undefined;
  choose: (chosen: readonly number[]) => void;
  root: ShadowRoot;
}) {
  const source = places.sources[index]!;
  const text = useMemo(() => source.lines.join("\n"), [source]);
  const marked = useMemo(
    () =>
      places.lines
        .flatMap(([s, line], l) => (s === index && marks.has(l) ? [line - source.first] : []))
        .sort((a, b) => a - b),
    [places, marks, source, index],
  );
  // Beside a line: its FLOPs, or how many instructions came of it.
  const notes = useMemo(() => {
    const found: string[] = source.lines.map(() => "");
    data.table.line.forEach((l, i) => {
      const [s, line] = places.lines[l] ?? [-1, 0];
      if (s !== index) return;
      const work = data.table.flops[i]!;
      found[line - source.first] = work ? amount(work) : `${data.table.instructions[i]}×`;
    });
    return found;
  }, [data, places, source, index]);
  const place = at === undefined ? undefined : places.lines[at];
  return (
    <>
      <div class="bar">
        <span class="dim">{source.title}</span>
      </div>
      <Code
        text={text}
        language="python"
        label={`Source, ${source.title}; beside each line its FLOPs or its number of instructions`}
        root={root}
        marked={marked}
        at={place && place[0] === index ? place[1] - source.first : null}
        onLine={(line) => {
          const found = places.lines.findIndex(([s, n]) => s === index && n === line + source.first);
          choose(found < 0 ? [] : [found]);
        }}
        notes={notes}
        first={source.first}
        most={places.sources.length > 1 ? 220 : 420}
      />
    </>
  );
}

function lineText(places: Places, l: number): string {
  const [s, line] = places.lines[l] ?? [-1, 0];
  const source = places.sources[s];
  return source ? `${line}  ${source.lines[line - source.first]?.trim() ?? ""}` : "(no line of yours)";
}

function ByLine({ data, client, places, marks, choose }: Part & {
  places: Places;
  marks: ReadonlySet<number>;
  choose: (l: number) => void;
}) {
  const { table } = data;
  const rows = useMemo(() => table.line.map((l, i) => ({ l, i })), [table]);
  return (
    <Table
      client={client}
      name="Cost by line"
      rows={rows}
      id={(r) => r.i}
      selected={(r) => marks.has(r.l)}
      onSelect={(r) => r.l >= 0 && choose(r.l)}
      columns={[
        { key: "line", label: "Line", value: (r) => lineText(places, r.l), draw: (r) => <span class="mono">{lineText(places, r.l)}</span> },
        { key: "instructions", label: "Instructions", kind: "count", value: (r) => table.instructions[r.i] },
        { key: "flops", label: "FLOPs", kind: "amount", value: (r) => table.flops[r.i] },
        { key: "transcendentals", label: "Transc.", kind: "amount", wide: true, value: (r) => table.transcendentals[r.i] },
        { key: "bytes", label: "Bytes", kind: "bytes", value: (r) => table.bytes[r.i] },
      ]}
    />
  );
}

function ByKind({ data, client }: Part) {
  return (
    <Table
      client={client}
      name="Instructions by kind"
      rows={data.kinds}
      id={(r) => r[0]}
      columns={[
        { key: "opcode", label: "Instruction", value: (r) => r[0], draw: (r) => <span class="mono">{r[0]}</span> },
        { key: "count", label: "Count", kind: "count", value: (r) => r[1] },
        { key: "fused", label: "Fused", kind: "count", says: "of them, within a fusion", value: (r) => r[2] },
        { key: "flops", label: "FLOPs", kind: "amount", value: (r) => r[3] },
        { key: "transcendentals", label: "Transc.", kind: "amount", wide: true, value: (r) => r[4] },
        { key: "bytes", label: "Bytes", kind: "bytes", value: (r) => r[5] },
      ]}
    />
  );
}

function Fusions({ data, client, toInstruction }: Part & { toInstruction: (name: string) => void }) {
  return (
    <Table
      client={client}
      name="Fusions"
      rows={data.fusions}
      id={(r) => r[0]}
      onSelect={(r) => toInstruction(r[0])}
      columns={[
        { key: "name", label: "Fusion", value: (r) => r[0], draw: (r) => <span class="mono">{r[0]}</span> },
        { key: "kind", label: "Kind", wide: true, value: (r) => r[1] },
        { key: "parts", label: "Of", value: (r) => r[2] },
        { key: "lines", label: "Lines", value: (r) => r[3].map((l) => data.lines[l]?.[1]).filter(Boolean).join(", ") },
        { key: "flops", label: "FLOPs", kind: "amount", wide: true, value: (r) => r[4] },
        { key: "bytes", label: "Bytes", kind: "bytes", value: (r) => r[5] },
      ]}
    />
  );
}

function Buffers({ data, client }: Part) {
  const { memory } = data;
  return (
    <>
      {memory && (
        <p>
          {bytes(memory.arguments)} arguments, {bytes(memory.outputs)} results ({bytes(memory.alias)} in place of
          arguments), {bytes(memory.temporary)} temporary, {bytes(memory.code)} code
        </p>
      )}
      <Table
        client={client}
        name="Memory by buffer"
        rows={data.buffers}
        id={(r) => r[0]}
        words={(r) => r[3].map((held) => held[0]).join(" ")}
        detail={(r) => (
          <ul class="mono">
            {r[3].map(([name, offset, size]) => (
              <li key={`${name} ${offset}`}>
                {name}: {bytes(size)} at {offset}
              </li>
            ))}
          </ul>
        )}
        columns={[
          { key: "index", label: "Buffer", value: (r) => `${r[0]}` },
          { key: "kind", label: "Kind", value: (r) => r[1] },
          { key: "size", label: "Size", kind: "bytes", value: (r) => r[2] },
          { key: "held", label: "Holds", value: (r) => r[3].slice(0, 4).map((held) => held[0]).join(", ") + (r[3].length > 4 ? " …" : "") },
        ]}
      />
    </>
  );
}

function Instruction({ client, places, name }: { client: Client; places: Places; name: string | null }) {
  const { value: found, failed } = useAnswer<InstructionAnswer>(client, "instruction", name === null ? null : { name });
  if (name === null) return <p class="dim">Choose an instruction in the optimized HLO.</p>;
  if (!found) return <p class="dim">{failed || "reading …"}</p>;
  const facts: [string, ComponentChildren][] = [
    ["Instruction", <span class="mono">{found.text}</span>],
    ["Scope", `${found.backward ? "backward of " : ""}${found.path.join(" / ") || "none"}`],
    ["Lines", found.lines.length ? found.lines.map((l) => <div class="mono">{lineText(places, l)}</div>) : "none of yours"],
    ["Cost", `${amount(found.cost[0])} FLOPs, ${amount(found.cost[1])} transcendental, ${bytes(found.cost[2])}; run ${count(found.runs)}×`],
    [
      "Stack",
      <details>
        <summary>{found.stack.length} frames, the innermost first</summary>
        {found.stack.map(([file, line, within], i) => (
          <div class="mono" key={i}>{`${file}:${line} ${within}`}</div>
        ))}
      </details>,
    ],
  ];
  return (
    <dl>
      {facts.map(([fact, value]) => (
        <>
          <dt>{fact}</dt>
          <dd>{value}</dd>
        </>
      ))}
    </dl>
  );
}

function Neighbourhood({ client, instruction, toInstruction }: {
  client: Client;
  instruction: string | null;
  toInstruction: (name: string) => void;
}) {
  const [whole, setWhole] = useKept(client, "whole", instruction === null);
  const [depth, setDepth] = useKept<number | null>(client, "depth", null);
  const [hops, setHops] = useKept(client, "hops", 2);
  const near = !whole && instruction !== null;
  const { value, failed } = useAnswer<GraphAnswer>(client, near ? "neighbourhood" : "fold", near ? { instruction, hops } : { depth });
  const most = useMemo(() => Math.max(1, ...(value?.nodes.map((n) => n[4]) ?? [])), [value]);
  const nodes = useMemo(
    () => value?.nodes.map(([id, label, says, , work]) => ({ id: String(id), label, says, weight: work / most })) ?? [],
    [value],
  );
  const edges = useMemo(() => value?.edges.map(([from, to]) => ({ from: String(from), to: String(to) })) ?? [], [value]);
  const deepest = Math.max(0, ...(value?.nodes.map((n) => n[3]) ?? []));
  const name = (id: string): string => nodes.find((n) => n.id === id)?.label ?? "";
  return (
    <>
      <div class="bar">
        <button type="button" aria-pressed={!near} onClick={() => setWhole(true)}>
          whole, by module
        </button>
        <button type="button" aria-pressed={near} disabled={instruction === null} onClick={() => setWhole(false)}>
          around {instruction ?? "an instruction"}
        </button>
        <button type="button" aria-label="Less" onClick={() => (near ? setHops(Math.max(1, hops - 1)) : setDepth(Math.max(1, (depth ?? deepest) - 1)))}>
          −
        </button>
        <button type="button" aria-label="More" onClick={() => (near ? setHops(hops + 1) : setDepth((depth ?? deepest) + 1))}>
          +
        </button>
        <span class="dim">
          {near ? `${hops} steps away` : `${depth ?? deepest} scopes deep`}
          {value?.cut && "; there is more than is shown"}
        </span>
        {failed && (
          <span class="bad" role="alert">
            {failed}
          </span>
        )}
      </div>
      {value && (
        <Graph
          nodes={nodes}
          edges={edges}
          at={near ? (nodes.find((n) => n.label === instruction)?.id ?? null) : null}
          onNode={(id) => near && toInstruction(name(id))}
          label={near ? `Around ${instruction}` : "The program by module"}
        />
      )}
    </>
  );
}
