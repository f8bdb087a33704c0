// `%jax hlo`: the cell's lines beside what was traced, what XLA was given and what it made of it, linked both ways.
import { MergeView } from "@codemirror/merge";
import { EditorState } from "@codemirror/state";
import { EditorView, lineNumbers } from "@codemirror/view";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { Code } from "../code.tsx";
import { count, flops } from "../format.ts";
import type { ViewProps } from "../frame.tsx";
import { Graph } from "../graph.tsx";
import { useKept } from "../kept.ts";
import { Act, copy, download, Tabs } from "../parts.tsx";
import type { DiffAnswer, GraphAnswer, HloData, Source, Stage } from "../shapes.ts";
import { Table } from "../table.tsx";

const NAMES: Record<string, string> = { jaxpr: "jaxpr", stablehlo: "StableHLO", hlo: "Optimized HLO", diff: "Diff" };

// Both directions of a stage's links. Lines are counted from 0, places as in `places`.
export interface Links {
  places: (line: number) => readonly number[];
  lines: (places: ReadonlySet<number>) => number[];
}

export function linksOf(stage: Pick<Stage, "line" | "place">): Links {
  const byLine = new Map<number, number[]>();
  stage.line.forEach((line, i) => {
    const own = byLine.get(line);
    if (own) own.push(stage.place[i]!);
    else byLine.set(line, [stage.place[i]!]);
  });
  return {
    places: (line) => byLine.get(line) ?? [],
    lines: (places) => {
      const found = new Set<number>();
      stage.place.forEach((place, i) => places.has(place) && found.add(stage.line[i]!));
      return [...found].sort((a, b) => a - b);
    },
  };
}

export function HloView({ data, client, root }: ViewProps<HloData>) {
  const [tab, setTab] = useKept<string>(client, "tab", data.stages.at(-1)?.stage ?? "hlo");
  const [lower, setLower] = useKept(client, "lower", "lines");
  const [chosen, setChosen] = useKept<readonly number[]>(client, "chosen", []); // places
  const [instruction, setInstruction] = useKept<number | null>(client, "instruction", null);
  const [jump, setJump] = useState<{ code?: number; source?: number }>({}); // where a link leads to
  const [searchKey, setSearchKey] = useState(0);
  const stage = data.stages.find((s) => s.stage === tab);
  const links = useMemo(() => stage && linksOf(stage), [stage]);
  const places = useMemo(() => new Set(chosen), [chosen]);
  const marked = useMemo(() => links?.lines(places) ?? [], [links, places]);

  const fromSource = (index: number, line: number): void => {
    const place = data.places.findIndex(([s, l]) => s === index && l === line);
    choose(place < 0 ? [] : [place], "source");
  };
  const choose = (next: readonly number[], by: "source" | "code" | "table"): void => {
    setChosen(next);
    const wanted = new Set(next);
    const first = links?.lines(wanted)[0];
    const line = next.length ? data.places[next[0]!]?.[1] : undefined;
    setJump({ code: by === "code" ? undefined : first, source: by === "source" ? undefined : line });
  };
  const fromCode = (line: number): void => {
    choose(links?.places(line) ?? [], "code");
    const found = stage?.instruction?.[line];
    if (found != null) setInstruction(found);
  };
  const toInstruction = (id: number): void => {
    setInstruction(id);
    const hlo = data.stages.find((s) => s.stage === "hlo");
    const line = hlo?.instruction?.indexOf(id) ?? -1;
    if (line < 0 || !hlo) return;
    setTab("hlo");
    setChosen(linksOf(hlo).places(line));
    setJump({ code: line, source: data.places[linksOf(hlo).places(line)[0] ?? -1]?.[1] });
  };
  return (
    <>
      <div class="bar">
        <span class="title">{data.title}</span>
        {data.facts.map(([name, value]) => (
          <span class="badge" key={name}>
            {name} {value}
          </span>
        ))}
      </div>
      <div class="sides">
        <div class="side">
          {data.sources.map((source, index) => (
            <SourcePane
              key={index}
              source={source}
              index={index}
              data={data}
              chosen={places}
              at={jump.source}
              onLine={(line) => fromSource(index, line)}
              root={root}
            />
          ))}
          {data.sources.length === 0 && <p class="dim">No line of the notebook is behind this program.</p>}
        </div>
        <div class="side">
          <Tabs
            label="Stages of compilation"
            at={tab}
            set={setTab}
            tabs={[
              ...data.stages.map((s) => ({
                key: s.stage,
                label: NAMES[s.stage] ?? s.stage,
                body: () => (
                  <>
                    <div class="bar">
                      <span class="dim">
                        {count(s.text.split("\n").length)} lines{marked.length > 0 && `, ${count(marked.length)} linked`}
                      </span>
                      <span class="space" />
                      <button type="button" onClick={() => setSearchKey(searchKey + 1)}>
                        search
                      </button>
                      <Act run={() => copy(s.text)}>copy</Act>
                      <button type="button" onClick={() => download(`${data.title.replace(/\W+/g, "_")}.${s.stage}.txt`, s.text)}>
                        download
                      </button>
                    </div>
                    <Code
                      text={s.text}
                      language="hlo"
                      label={`${NAMES[s.stage]} of ${data.title}`}
                      root={root}
                      marked={marked}
                      at={jump.code ?? null}
                      onLine={fromCode}
                      searchKey={searchKey}
                    />
                  </>
                ),
              })),
              ...(data.others.length
                ? [{ key: "diff", label: "Diff", body: () => <Diff data={data} client={client} root={root} /> }]
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
          { key: "lines", label: "By line", body: () => <ByLine data={data} client={client} places={places} choose={(p) => choose([p], "table")} /> },
          { key: "kinds", label: "By instruction", body: () => <ByKind data={data} client={client} /> },
          { key: "fusions", label: `Fusions (${data.fusions.length})`, body: () => <Fusions data={data} client={client} /> },
          { key: "memory", label: "Memory", body: () => <Buffers data={data} client={client} /> },
          {
            key: "graph",
            label: "Graph",
            body: () => <Neighbourhood client={client} instruction={instruction} onInstruction={toInstruction} />,
          },
        ]}
      />
    </>
  );
}

function SourcePane({ source, index, data, chosen, at, onLine, root }: {
  source: Source;
  index: number;
  data: HloData;
  chosen: ReadonlySet<number>;
  at: number | undefined;
  onLine: (line: number) => void;
  root: ShadowRoot;
}) {
  const marked = useMemo(
    () =>
      data.places
        .flatMap(([s, line], place) => (s === index && chosen.has(place) ? [line - source.first] : []))
        .sort((a, b) => a - b),
    [data, chosen, source, index],
  );
  const notes = useMemo(() => {
    const found: string[] = new Array(source.text.split("\n").length).fill("");
    for (const row of data.lines) {
      const [s, line] = data.places[row.place] ?? [-1, 0];
      if (s === index) found[line - source.first] = row.flops ? `${flops(row.flops)}` : `${row.instructions}×`;
    }
    return found;
  }, [data, source, index]);
  return (
    <>
      <div class="bar">
        <span class="dim">{source.name}</span>
      </div>
      <Code
        text={source.text}
        language="python"
        label={`Source, ${source.name}; beside each line its FLOPs or its number of instructions`}
        root={root}
        marked={marked}
        at={at === undefined ? null : at - source.first}
        onLine={(line) => onLine(line + source.first)}
        notes={notes}
        height={data.sources.length > 1 ? "220px" : undefined}
      />
    </>
  );
}

interface Part {
  data: HloData;
  client: ViewProps["client"];
}

function ByLine({ data, client, places, choose }: Part & { places: ReadonlySet<number>; choose: (place: number) => void }) {
  const line = (place: number): string => {
    const [source, number] = data.places[place] ?? [-1, 0];
    const found = data.sources[source];
    return found ? `${number}: ${found.text.split("\n")[number - found.first]?.trim() ?? ""}` : "no line";
  };
  return (
    <Table
      client={client}
      name="Cost by line"
      rows={data.lines}
      id={(r) => r.id}
      selected={(r) => places.has(r.place)}
      onSelect={(r) => choose(r.place)}
      columns={[
        { key: "line", label: "Line", value: (r) => line(r.place), draw: (r) => <span class="mono">{line(r.place)}</span> },
        { key: "instructions", label: "Instructions", kind: "count", value: (r) => r.instructions },
        { key: "flops", label: "FLOPs", kind: "flops", value: (r) => r.flops },
        { key: "bytes", label: "Bytes", kind: "bytes", value: (r) => r.bytes },
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
      id={(r) => r.id}
      sort={{ key: "count", down: true }}
      columns={[
        { key: "opcode", label: "Instruction", value: (r) => r.opcode },
        { key: "count", label: "Count", kind: "count", value: (r) => r.count },
        { key: "flops", label: "FLOPs", kind: "flops", value: (r) => r.flops },
        { key: "bytes", label: "Bytes", kind: "bytes", value: (r) => r.bytes },
      ]}
    />
  );
}

function Fusions({ data, client }: Part) {
  return (
    <Table
      client={client}
      name="Fusions"
      rows={data.fusions}
      id={(r) => r.id}
      words={(r) => r.inner.join(" ")}
      detail={(r) => <span class="mono">{r.inner.join(", ")}</span>}
      columns={[
        { key: "name", label: "Fusion", value: (r) => r.name },
        { key: "inner", label: "Operations", kind: "count", value: (r) => r.inner.length },
        { key: "flops", label: "FLOPs", kind: "flops", value: (r) => r.flops },
        { key: "bytes", label: "Bytes", kind: "bytes", value: (r) => r.bytes },
      ]}
    />
  );
}

function Buffers({ data, client }: Part) {
  return (
    <Table
      client={client}
      name="Memory by buffer"
      rows={data.buffers}
      id={(r) => r.id}
      sort={{ key: "bytes", down: true }}
      columns={[
        { key: "name", label: "Buffer", value: (r) => r.name },
        { key: "bytes", label: "Size", kind: "bytes", value: (r) => r.bytes },
      ]}
    />
  );
}

function Neighbourhood({ client, instruction, onInstruction }: {
  client: ViewProps["client"];
  instruction: number | null;
  onInstruction: (id: number) => void;
}) {
  const [whole, setWhole] = useKept(client, "whole", instruction === null);
  const [scope, setScope] = useKept(client, "scope", "");
  const [answer, setAnswer] = useState<GraphAnswer | null>(null);
  const [failed, setFailed] = useState("");
  const near = !whole && instruction !== null;
  useEffect(() => {
    let current = true;
    const asked = near
      ? client.ask<GraphAnswer & never>("neighbourhood", { instruction })
      : client.ask<GraphAnswer & never>("scopes", { scope });
    asked.then(
      (found) => current && (setAnswer(found), setFailed("")),
      (error: Error) => current && setFailed(error.message),
    );
    return () => void (current = false);
  }, [near, instruction, scope]);
  return (
    <>
      <div class="bar">
        <button type="button" aria-pressed={!near} onClick={() => setWhole(true)}>
          whole, by module
        </button>
        <button type="button" aria-pressed={near} disabled={instruction === null} onClick={() => setWhole(false)}>
          around the instruction
        </button>
        {!near && scope && (
          <button type="button" onClick={() => setScope(scope.split("/").slice(0, -1).join("/"))}>
            up from {scope}
          </button>
        )}
        {failed && <span class="bad" role="alert">{failed}</span>}
      </div>
      {answer && (
        <Graph
          nodes={answer.nodes}
          edges={answer.edges.map(([from, to]) => ({ from, to }))}
          at={near ? String(instruction) : null}
          onNode={(id) => (near ? onInstruction(Number(id)) : setScope(id))}
          label={near ? "Neighbourhood of an instruction" : "The program by module"}
        />
      )}
    </>
  );
}

function Diff({ data, client, root }: Part & { root: ShadowRoot }) {
  const [other, setOther] = useKept(client, "other", data.others[0]!.id);
  const [stage, setStage] = useKept(client, "diff stage", "hlo");
  const [answer, setAnswer] = useState<DiffAnswer | null>(null);
  const [failed, setFailed] = useState("");
  const place = useRef<HTMLDivElement>(null);
  useEffect(() => {
    let current = true;
    client.ask<DiffAnswer & never>("diff", { other, stage }).then(
      (found) => current && (setAnswer(found), setFailed("")),
      (error: Error) => current && setFailed(error.message),
    );
    return () => void (current = false);
  }, [other, stage]);
  useEffect(() => {
    if (!answer) return;
    const side = (doc: string, label: string) => ({
      doc,
      extensions: [
        lineNumbers(),
        EditorState.readOnly.of(true),
        EditorView.contentAttributes.of({ "aria-label": label, "aria-readonly": "true" }),
      ],
    });
    const merged = new MergeView({
      a: side(answer.left, answer.names[0]),
      b: side(answer.right, answer.names[1]),
      parent: place.current!,
      root,
      collapseUnchanged: { margin: 2, minSize: 6 },
      gutter: true,
    });
    return () => merged.destroy();
  }, [answer]);
  return (
    <>
      <div class="bar">
        <label>
          with{" "}
          <select
            value={String(other)}
            onChange={(e) => setOther(data.others.find((o) => String(o.id) === e.currentTarget.value)!.id)}
          >
            {data.others.map((o) => (
              <option key={o.id} value={String(o.id)}>
                #{o.id} {o.name}
              </option>
            ))}
          </select>
        </label>
        <label>
          of{" "}
          <select value={stage} onChange={(e) => setStage(e.currentTarget.value)}>
            {data.stages.map((s) => (
              <option key={s.stage} value={s.stage}>
                {NAMES[s.stage]}
              </option>
            ))}
          </select>
        </label>
        {answer && (
          <span class="dim">
            left {answer.names[0]}, right {answer.names[1]}
          </span>
        )}
        {failed && <span class="bad" role="alert">{failed}</span>}
      </div>
      <div class="code diff" ref={place} onKeyDown={(e) => e.stopPropagation()} />
    </>
  );
}
