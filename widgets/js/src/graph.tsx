// A small graph, laid out by dagre and drawn as SVG; its nodes are buttons. It is dragged and zoomed like a map.
import { graphlib, layout } from "@dagrejs/dagre";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";

export interface Node {
  id: string;
  label: string;
  says?: string; // a second line, smaller
  weight?: number; // 0 to 1: how much it is worth a look
  many?: boolean; // whether it represents several
}

export interface Edge {
  from: string;
  to: string;
}

export interface GraphProps {
  nodes: readonly Node[];
  edges: readonly Edge[];
  at: string | null;
  onNode: (id: string) => void;
  label: string;
}

const WIDEST = 34;
const LEAST = 0.05;
const MOST = 4; // how far it zooms
const READABLE = 0.8; // at which labels are as large as the small print of a page
const TALLEST = 420;
const cut = (text: string): string => (text.length > WIDEST ? `…${text.slice(1 - WIDEST)}` : text);

export function placed(nodes: readonly Node[], edges: readonly Edge[]) {
  const graph = new graphlib.Graph();
  graph.setGraph({ rankdir: "TB", nodesep: 18, ranksep: 32, marginx: 8, marginy: 8 });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const node of nodes) {
    const letters = Math.max(cut(node.label).length, cut(node.says ?? "").length * 0.85);
    graph.setNode(node.id, { width: 20 + letters * 7, height: node.says ? 40 : 26 });
  }
  for (const { from, to } of edges) if (graph.hasNode(from) && graph.hasNode(to)) graph.setEdge(from, to);
  layout(graph);
  return graph;
}

// Where across the drawing its highest node is.
function start(graph: ReturnType<typeof placed>): number {
  const nodes = graph.nodes().map((id) => graph.node(id) as { x: number; y: number });
  return nodes.reduce((top, node) => (node.y < top.y ? node : top), nodes[0] ?? { x: 0, y: 0 }).x;
}

export interface Sight {
  x: number; // where the drawing's corner is
  y: number;
  scale: number;
}

// The whole drawing, in the middle, no larger than it is; a wide or tall one is as small as needed.
export function fitted(width: number, height: number, to: { width: number; height: number }): Sight {
  const scale = Math.max(LEAST, Math.min(1, to.width / width, to.height / height));
  return { scale, x: (to.width - width * scale) / 2, y: Math.max(0, (to.height - height * scale) / 2) };
}

// What is seen first: the whole drawing if its labels are readable, else its start, around `first`.
export function opened(width: number, height: number, to: { width: number; height: number }, first: number): Sight {
  const whole = fitted(width, height, to);
  if (whole.scale >= READABLE) return whole;
  const rest = to.width - width * READABLE; // negative if the drawing is wider
  const x = rest >= 0 ? rest / 2 : Math.min(0, Math.max(rest, to.width / 2 - first * READABLE));
  return { scale: READABLE, x, y: Math.max(0, (to.height - height * READABLE) / 2) };
}

// Larger or smaller, with one point staying where it is.
export function zoomed(sight: Sight, by: number, at: { x: number; y: number }): Sight {
  const scale = Math.min(MOST, Math.max(LEAST, sight.scale * by));
  const real = scale / sight.scale;
  return { scale, x: at.x - (at.x - sight.x) * real, y: at.y - (at.y - sight.y) * real };
}

// What is in sight, and what moves it: dragging, the wheel with Ctrl, and keys.
function useSight(width: number, height: number, tall: number, first: number) {
  const box = useRef<HTMLDivElement>(null);
  const [moved, setMoved] = useState<Sight | null>(null); // by the reader
  const [wide, setWide] = useState(600);
  const sight = moved ?? opened(width, height, { width: wide, height: tall }, first);
  const now = useRef(sight);
  now.current = sight;
  const drag = useRef<{ x: number; y: number; far: boolean } | null>(null);
  const zoom = (by: number, at = { x: wide / 2, y: tall / 2 }): void => setMoved(zoomed(now.current, by, at));
  const fit = (): void => setMoved(fitted(width, height, { width: wide, height: tall }));
  const shift = (x: number, y: number): void => setMoved({ ...now.current, x: now.current.x + x, y: now.current.y + y });

  useLayoutEffect(() => {
    const look = (): void => setWide(box.current?.clientWidth || 600);
    look();
    const watch = new ResizeObserver(look);
    if (box.current) watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  useEffect(() => setMoved(null), [width, height]);
  useEffect(() => {
    const element = box.current;
    const wheel = (event: WheelEvent): void => {
      if (!event.ctrlKey && !event.metaKey) return; // the page's
      event.preventDefault();
      const { left, top } = element!.getBoundingClientRect();
      zoom(Math.exp(-event.deltaY / 300), { x: event.clientX - left, y: event.clientY - top });
    };
    element?.addEventListener("wheel", wheel, { passive: false });
    return () => element?.removeEventListener("wheel", wheel);
  }, [wide]);

  const keys: Record<string, () => void> = {
    "+": () => zoom(1.3),
    "-": () => zoom(1 / 1.3),
    "0": fit,
    ArrowLeft: () => shift(60, 0),
    ArrowRight: () => shift(-60, 0),
    ArrowUp: () => shift(0, 60),
    ArrowDown: () => shift(0, -60),
  };
  const handlers = {
    onPointerDown: (event: PointerEvent): void => {
      if (event.button === 0) drag.current = { x: event.clientX, y: event.clientY, far: false };
    },
    onPointerMove: (event: PointerEvent): void => {
      const from = drag.current;
      if (!from || !(event.buttons & 1)) return;
      const [x, y] = [event.clientX - from.x, event.clientY - from.y];
      if (!from.far && Math.hypot(x, y) < 4) return; // a press
      if (!from.far) box.current?.setPointerCapture(event.pointerId);
      drag.current = { x: event.clientX, y: event.clientY, far: true };
      shift(x, y);
    },
    // What follows a drag is no press on the node below.
    onClickCapture: (event: Event): void => {
      if (drag.current?.far) event.stopPropagation();
      drag.current = null;
    },
    onKeyDown: (event: KeyboardEvent): void => {
      const act = keys[event.key];
      if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      event.stopPropagation();
      act();
    },
  };
  // What gets the focus comes into sight.
  const reveal = (x: number, y: number): void => {
    const { scale, x: left, y: top } = now.current;
    const [at, below] = [left + x * scale, top + y * scale];
    if (at < 0 || at > wide || below < 0 || below > tall) shift(wide / 2 - at, tall / 2 - below);
  };
  return { box, sight, handlers, zoom, fit, reveal };
}

export function Graph({ nodes, edges, at, onNode, label }: GraphProps) {
  const graph = useMemo(() => placed(nodes, edges), [nodes, edges]);
  const size = graph.graph() as { width?: number; height?: number };
  const width = Math.max(size.width ?? 0, 40);
  const height = Math.max(size.height ?? 0, 40);
  const tall = Math.min(TALLEST, Math.max(160, height));
  const first = useMemo(() => start(graph), [graph]);
  const { box, sight, handlers, zoom, fit, reveal } = useSight(width, height, tall, first);
  if (nodes.length === 0) return <p class="dim">Nothing to draw.</p>;
  return (
    <div class="graph">
      <div class="zoom">
        <button type="button" aria-label="Zoom out" onClick={() => zoom(1 / 1.3)}>
          −
        </button>
        <button type="button" aria-label="Zoom in" onClick={() => zoom(1.3)}>
          +
        </button>
        <button type="button" title="Drag to move, Ctrl and the wheel to zoom; keys: arrows, +, -, 0" onClick={fit}>
          fit
        </button>
      </div>
      <div class="map" ref={box} tabIndex={0} role="region" aria-label={label} style={{ height: `${tall}px` }} {...handlers}>
        <svg width="100%" height="100%" role="group" aria-label={label}>
          <defs>
            <marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
              <path d="M0 0L8 4L0 8z" fill="var(--dim)" />
            </marker>
          </defs>
          <g class="drawing" transform={`translate(${sight.x} ${sight.y}) scale(${sight.scale})`}>
            {graph.edges().map((edge) => {
              const points = (graph.edge(edge) as { points: { x: number; y: number }[] }).points;
              const path = points.map((p, i) => `${i ? "L" : "M"}${p.x.toFixed(1)} ${p.y.toFixed(1)}`).join("");
              return <path key={`${edge.v}→${edge.w}`} d={path} fill="none" stroke="var(--dim)" marker-end="url(#arrow)" />;
            })}
            {nodes.map((node) => {
              const place = graph.node(node.id) as { x: number; y: number; width: number; height: number };
              return <Box key={node.id} {...{ node, place }} at={node.id === at} press={() => onNode(node.id)} reveal={reveal} />;
            })}
          </g>
        </svg>
      </div>
    </div>
  );
}

interface BoxProps {
  node: Node;
  place: { x: number; y: number; width: number; height: number };
  at: boolean;
  press: () => void;
  reveal: (x: number, y: number) => void;
}

function Box({ node, place, at, press, reveal }: BoxProps) {
  const { x, y, width, height } = place;
  return (
    <g
      class={`node ${node.many ? "many" : ""}`}
      role="button"
      tabindex={0} // of SVG, this spelling alone can be focused
      aria-pressed={at}
      aria-label={`${node.label} ${node.says ?? ""}`}
      transform={`translate(${x - width / 2} ${y - height / 2})`}
      onClick={press}
      onFocus={() => reveal(x, y)}
      onKeyDown={(event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        event.stopPropagation();
        press();
      }}
    >
      <title>{`${node.label} ${node.says ?? ""}`}</title>
      {node.many && <rect class="behind" x="5" y="-5" width={width} height={height} rx="4" />}
      <rect width={width} height={height} rx="4" />
      {node.weight ? <rect class="weight" y={height - 3} height="3" width={width * Math.min(1, node.weight)} /> : null}
      <text x={width / 2} y={17} text-anchor="middle">
        {cut(node.label)}
      </text>
      {node.says && (
        <text class="says" x={width / 2} y={32} text-anchor="middle">
          {cut(node.says)}
        </text>
      )}
    </g>
  );
}
