// A small graph, laid out by dagre and drawn as SVG; its nodes are buttons.
import { graphlib, layout } from "@dagrejs/dagre";
import { useMemo } from "preact/hooks";

export interface Node {
  id: string;
  label: string;
  says?: string; // a second line, smaller
  weight?: number; // 0 to 1: how much it is worth a look
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

const WIDEST = 30;
const cut = (text: string): string => (text.length > WIDEST ? `${text.slice(0, WIDEST - 1)}…` : text);

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

export function Graph({ nodes, edges, at, onNode, label }: GraphProps) {
  const graph = useMemo(() => placed(nodes, edges), [nodes, edges]);
  const size = graph.graph() as { width?: number; height?: number };
  const width = Math.max(size.width ?? 0, 40);
  const height = Math.max(size.height ?? 0, 40);
  if (nodes.length === 0) return <p class="dim">Nothing to draw.</p>;
  return (
    <div class="scroll graph" tabIndex={0} role="region" aria-label={label}>
      <svg width={width} height={height} viewBox={`0 0 ${width} ${height}`} role="group" aria-label={label}>
        <defs>
          <marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
            <path d="M0 0L8 4L0 8z" fill="var(--dim)" />
          </marker>
        </defs>
        {graph.edges().map((edge) => {
          const points = (graph.edge(edge) as { points: { x: number; y: number }[] }).points;
          const path = points.map((p, i) => `${i ? "L" : "M"}${p.x.toFixed(1)} ${p.y.toFixed(1)}`).join("");
          return <path key={`${edge.v}→${edge.w}`} d={path} fill="none" stroke="var(--dim)" marker-end="url(#arrow)" />;
        })}
        {nodes.map((node) => {
          const box = graph.node(node.id) as { x: number; y: number; width: number; height: number };
          const press = (): void => onNode(node.id);
          return (
            <g
              key={node.id}
              class="node"
              role="button"
              tabindex={0} // of SVG, this spelling alone can be focused
              aria-pressed={node.id === at}
              aria-label={`${node.label} ${node.says ?? ""}`}
              transform={`translate(${box.x - box.width / 2} ${box.y - box.height / 2})`}
              onClick={press}
              onKeyDown={(event) => {
                if (event.key !== "Enter" && event.key !== " ") return;
                event.preventDefault();
                event.stopPropagation();
                press();
              }}
            >
              <title>{`${node.label} ${node.says ?? ""}`}</title>
              <rect width={box.width} height={box.height} rx="4" />
              {node.weight ? <rect class="weight" y={box.height - 3} height="3" width={box.width * Math.min(1, node.weight)} /> : null}
              <text x={box.width / 2} y={17} text-anchor="middle">
                {cut(node.label)}
              </text>
              {node.says && (
                <text class="says" x={box.width / 2} y={32} text-anchor="middle">
                  {cut(node.says)}
                </text>
              )}
            </g>
          );
        })}
      </svg>
    </div>
  );
}
