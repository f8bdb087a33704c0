// `%jax hlo`: the lines of a cell beside its jaxpr, StableHLO and optimized HLO, linked both ways.
import { useEffect, useMemo, useState } from "preact/hooks";
import { Code } from "../code.tsx";
import { amount, count } from "../format.ts";
import type { ViewProps } from "../frame.tsx";
import { Graph } from "../graph.tsx";
import { useKept } from "../kept.ts";
import { hueOf } from "../decorations.ts";
import { firstOf, instructionOn, instructionsOf, linksOf } from "../linked.ts";
import { Act, copy, download, Tabs } from "../parts.tsx";
import type { CostRow, File, GraphAnswer, HloData, InstructionAnswer, SourceLines, StageAnswer } from "../generated.ts";
import { FactsView, Heading, SectionView, type Marks } from "../sections.tsx";
import { AskedDiff } from "./diff.tsx";

type Client = ViewProps["client"];

const NAMES: Record<string, string> = { jaxpr: "jaxpr", stablehlo: "StableHLO", hlo: "Optimized HLO" };

// An answer of the kernel, requested when it is first needed and kept as long as the view.
const answers = new WeakMap<Client, Map<string, unknown>>();

function useAnswer<T>(client: Client, ask: string, args: Record<string, string | number | boolean | null> | null) {
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
  const [lower, setLower] = useKept<string>(client, "lower", "By line");
  const [chosen, setChosen] = useKept<readonly number[]>(client, "chosen", data.line < 0 ? [] : [data.line]); // Ls
  const [instruction, setInstruction] = useKept<string | null>(client, "instruction", null);
  const [places, setPlaces] = useKept<SourceLines>(client, "places", data);
  const [jump, setJump] = useKept<{ code?: number; line?: number }>(client, "jump", {}); // where a link leads to
  const [full, setFull] = useKept(client, "attributes", false); // whether attributes are shown
  const [search, setSearch] = useState(data.grep ? { query: data.grep, key: 1 } : { query: "", key: 0 });

  const isStage = data.stages.includes(tab);
  const { value: stage, failed } = useAnswer<StageAnswer>(client, "stage", isStage ? { stage: tab } : null);
  const links = useMemo(() => stage && linksOf(stage), [stage]);
  const marks = useMemo(() => new Set(chosen), [chosen]);
  const marked = useMemo(() => links?.to(marks) ?? [], [links, marks]);
  const guessed = useMemo(() => new Set(stage?.inferred), [stage]);
  const hues = useMemo(() => stage && firstOf(stage).map((l) => (l === null || l < 0 ? null : hueOf(l))), [stage]);
  const guesses = marked.filter((line) => guessed.has(line)).length;
  const instructions = useMemo(() => (stage?.stage === "hlo" ? instructionsOf(stage.text) : undefined), [stage]);

  // A stage may refer to lines that no other stage did; the Ls of the others stay the same.
  useEffect(() => {
    if (stage && stage.lines.length > places.lines.length) setPlaces({ sources: stage.sources, lines: stage.lines });
  }, [stage]);
  // XLA prints the entry computation last: of the linked lines, one in the entry is shown first.
  const entry = useMemo(() => stage?.text.split("\n").findIndex((line) => line.startsWith("ENTRY ")) ?? -1, [stage]);
  const inEntry = (lines: readonly number[]): number | undefined => lines.find((line) => line > entry) ?? lines[0];
  // Scroll to the line that `%jax hlo` named, or that was chosen in another stage.
  useEffect(() => {
    if (!stage || jump.code !== undefined) return;
    const first = inEntry(marked) ?? (data.grep ? -1 : entry);
    if (first >= 0) setJump({ ...jump, code: first });
  }, [stage]);

  // The pane that was pressed does not scroll: a text that moves under a pressed mouse is selected, not clicked.
  const choose = (next: readonly number[], from: "code" | "source" | "elsewhere"): void => {
    setChosen(next);
    setJump({
      code: from === "code" ? undefined : inEntry(links?.to(new Set(next)) ?? []),
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
  // What a press on a row of a table marks: of the costs, a line; of the fusions, an instruction.
  const marksOf: Record<string, Marks> = {
    lines: { chosen, press: ([l]) => typeof l === "number" && l >= 0 && choose([l], "elsewhere") },
    fusions: { chosen: instruction === null ? [] : [instruction], press: ([name]) => toInstruction(String(name)) },
  };
  const height = heightOf(places);
  const titles = [...new Set(data.page.sections.map((section) => section.title))];
  return (
    <>
      <Heading page={data.page} />
      <div class="sides">
        <div class="side from">
          {places.sources.map((_, index) => (
            <SourcePane key={index} {...{ index, data, places, marks, root }} at={jump.line} choose={(l) => choose(l, "source")} />
          ))}
          {places.sources.length === 0 && <p class="dim">This program has no source line in your code.</p>}
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
                          {guesses > 0 && `, ${count(guesses)} of them by inference`}
                        </span>
                        <span class="space" />
                        <button type="button" aria-pressed={full} title="metadata, sharding, configuration" onClick={() => setFull(!full)}>
                          attributes
                        </button>
                        <button type="button" onClick={() => setSearch({ query: "", key: search.key + 1 })}>
                          search
                        </button>
                        <Act run={() => copy(stage.text)}>copy</Act>
                        <Act
                          run={async () => {
                            const made = await client.ask<File>("download", { stage: name });
                            download(made.name, made.text);
                          }}
                        >
                          download
                        </Act>
                      </div>
                      <Code
                        key={name}
                        text={stage.text}
                        language="hlo"
                        label={`${NAMES[name]} of ${data.page.title}`}
                        root={root}
                        marked={marked}
                        guessed={stage.inferred}
                        {...(hues && { hues })}
                        attributes={full}
                        height={height}
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
          ...titles.map((title) => ({
            key: title,
            label: title,
            body: () =>
              data.page.sections
                .filter((section) => section.title === title)
                .map((section, i) => (
                  <SectionView key={i} {...{ section, client }} marks={"key" in section ? marksOf[section.key] : undefined} />
                )),
          })),
          { key: "instruction", label: "Instruction", body: () => <Instruction client={client} name={instruction} /> },
          { key: "graph", label: "Graph", body: () => <Neighbourhood {...{ client, instruction, toInstruction }} /> },
        ]}
      />
    </>
  );
}

// Both panes are as high as the code needs, within bounds.
function heightOf({ sources }: SourceLines): number {
  const lines = sources.reduce((sum, source) => sum + source.lines.length + 2, 0);
  return Math.min(480, Math.max(300, lines * 18 + 12));
}

function SourcePane({ index, data, places, marks, at, choose, root }: {
  index: number;
  data: HloData;
  places: SourceLines;
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
  // Beside a line: its FLOPs, or the number of its instructions.
  const notes = useMemo(() => {
    const found: string[] = source.lines.map(() => "");
    const costs = data.page.sections.find((section) => section.type === "table" && section.key === "lines");
    const rows = costs && "rows" in costs ? (costs.rows as CostRow[]) : [];
    rows.forEach((row) => {
      const [s, line] = places.lines[row.id as number] ?? [-1, 0];
      if (s === index) found[line - source.first] = row.flops ? amount(row.flops) : `${row.instructions}×`;
    });
    return found;
  }, [data, places, source, index]);
  const hues = useMemo(() => {
    const found: (number | null)[] = source.lines.map(() => null);
    places.lines.forEach(([s, line], l) => {
      if (s === index && line >= source.first) found[line - source.first] = hueOf(l);
    });
    return found;
  }, [places, source, index]);
  const place = at === undefined ? undefined : places.lines[at];
  return (
    <>
      <div class="bar columns dim">
        <span class="notes" title="of each line in one run of the program; 16× are 16 instructions without any">
          FLOPs
        </span>
        <span>{source.title}</span>
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
        hues={hues}
        first={source.first}
      />
    </>
  );
}

function Instruction({ client, name }: { client: Client; name: string | null }) {
  const { value: found, failed } = useAnswer<InstructionAnswer>(client, "instruction", name === null ? null : { name });
  if (name === null) return <p class="dim">Choose an instruction in the optimized HLO.</p>;
  if (!found) return <p class="dim">{failed || "reading …"}</p>;
  return <FactsView {...found.facts} />;
}

function Neighbourhood({ client, instruction, toInstruction }: {
  client: Client;
  instruction: string | null;
  toInstruction: (name: string) => void;
}) {
  const [whole, setWhole] = useKept(client, "whole", instruction === null);
  const [depth, setDepth] = useKept<number | null>(client, "depth", null);
  const [hops, setHops] = useKept(client, "hops", 2);
  const [repeats, setRepeats] = useKept(client, "repeats", false); // whether each of equal layers is drawn
  const near = !whole && instruction !== null;
  const { value, failed } = useAnswer<GraphAnswer>(client, near ? "neighbourhood" : "fold", near ? { instruction, hops } : { depth, repeats });
  const most = useMemo(() => Math.max(1, ...(value?.nodes.map((n) => n[4]) ?? [])), [value]);
  const nodes = useMemo(
    () => value?.nodes.map(([id, label, says, , work, , , number]) => ({ id: String(id), label, says, weight: work / most, many: number > 1 })) ?? [],
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
        {!near && (repeats || value?.nodes.some((n) => n[7] > 1)) && (
          <button type="button" aria-pressed={!repeats} onClick={() => setRepeats(!repeats)}>
            equal layers as one
          </button>
        )}
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
