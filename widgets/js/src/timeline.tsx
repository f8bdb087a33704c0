// Events in lanes on a canvas: wheel or + and − zoom, a drag or the arrows pan, a click selects, a drag with Shift
// selects a span of time. 100,000 events are drawn by skipping those narrower than a pixel that is already filled.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { seconds, ticks } from "./format.ts";

// One entry an event; all of the same length.
export interface Events {
  start: readonly number[]; // seconds
  duration: readonly number[];
  lane: readonly number[];
  depth: readonly number[];
  name: readonly number[]; // into names
  category: readonly number[]; // into categories
}

export interface Span {
  from: number;
  to: number;
}

export interface TimelineProps {
  events: Events;
  lanes: readonly { name: string; device?: boolean }[];
  names: readonly string[];
  categories: readonly { name: string; colour: string }[];
  marked?: (event: number) => boolean;
  selected: number | null;
  onSelect: (event: number | null) => void;
  span: Span | null;
  onSpan: (span: Span | null) => void;
  whole: Span; // what is in sight at first; what ran before and after it is not drawn
  label: string;
  theme: string;
}

const ROW = 16;
const GAP = 20; // contains a lane's name
const AXIS = 20;

interface Lane {
  name: string;
  device: boolean;
  top: number;
  rows: number;
  events: number[]; // by start
}

export function lanesOf(events: Events, lanes: TimelineProps["lanes"], whole: Span): Lane[] {
  const found: Lane[] = lanes.map(({ name, device }) => ({ name, device: !!device, top: 0, rows: 0, events: [] }));
  for (let i = 0; i < events.start.length; i++) {
    const lane = found[events.lane[i]!];
    const start = events.start[i]!;
    if (!lane || start > whole.to || start + events.duration[i]! < whole.from) continue;
    lane.events.push(i);
    lane.rows = Math.max(lane.rows, Math.min(events.depth[i] ?? 0, 11) + 1);
  }
  let top = AXIS;
  for (const lane of found) {
    lane.events.sort((a, b) => events.start[a]! - events.start[b]!);
    lane.top = top + GAP;
    top = lane.top + lane.rows * ROW;
  }
  return found.filter((lane) => lane.rows > 0);
}

// A step of 1, 2 or 5 times a power of ten, so that about `wanted` of them fit into `length`.
export function step(length: number, wanted: number): number {
  const raw = length / Math.max(1, wanted);
  const power = 10 ** Math.floor(Math.log10(raw));
  const times = raw / power;
  return (times <= 1 ? 1 : times <= 2 ? 2 : times <= 5 ? 5 : 10) * power;
}

export function Timeline(props: TimelineProps) {
  const { events, names, selected, span, whole } = props;
  const canvas = useRef<HTMLCanvasElement>(null);
  const lanes = useMemo(() => lanesOf(events, props.lanes, whole), [events, props.lanes, whole]);
  const [sight, setSight] = useState<Span>(whole);
  const [width, setWidth] = useState(800);
  const [pointed, setPointed] = useState<number | null>(null);
  const drag = useRef<{ x: number; sight: Span; moved: boolean; choose: boolean } | null>(null);
  const last = lanes.at(-1);
  const height = (last ? last.top + last.rows * ROW : AXIS) + 6;

  useEffect(() => setSight(whole), [whole]);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(Math.max(120, Math.floor(entry!.contentRect.width))));
    observer.observe(canvas.current!.parentElement!);
    return () => observer.disconnect();
  }, []);

  const time = (x: number): number => sight.from + (x / width) * (sight.to - sight.from);
  const see = (next: Span): void => {
    const length = Math.min(Math.max(next.to - next.from, 1e-9), whole.to - whole.from);
    const from = Math.min(Math.max(next.from, whole.from), whole.to - length);
    setSight({ from, to: from + length });
  };
  const zoom = (factor: number, around: number): void =>
    see({ from: around - (around - sight.from) * factor, to: around + (sight.to - around) * factor });

  useEffect(() => {
    const element = canvas.current!;
    const scale = devicePixelRatio || 1;
    element.width = width * scale;
    element.height = height * scale;
    const pen = element.getContext("2d")!;
    pen.scale(scale, scale);
    paint(pen, { ...props, lanes, sight, width, height, pointed }, getComputedStyle(element));
  }, [lanes, sight, width, height, selected, span, pointed, props.marked, props.theme]);

  // React to the wheel ourselves: the page must not scroll while it zooms.
  useEffect(() => {
    const element = canvas.current!;
    const wheel = (event: WheelEvent): void => {
      if (!event.ctrlKey && !event.metaKey && !element.matches(":focus")) return; // a page is scrolled past it
      event.preventDefault();
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        const by = (event.deltaX / width) * (sight.to - sight.from);
        see({ from: sight.from + by, to: sight.to + by });
      } else zoom(Math.exp(event.deltaY * 0.002), time(event.offsetX));
    };
    element.addEventListener("wheel", wheel, { passive: false });
    return () => element.removeEventListener("wheel", wheel);
  });

  const under = (x: number, y: number): number | null => {
    const lane = lanes.find((l) => y >= l.top && y < l.top + l.rows * ROW);
    if (!lane) return null;
    const at = time(x);
    const slack = ((sight.to - sight.from) / width) * 2;
    const row = Math.floor((y - lane.top) / ROW);
    let best: number | null = null;
    for (const i of lane.events) {
      if (events.start[i]! > at + slack) break;
      if (Math.min(events.depth[i]!, 11) !== row) continue;
      if (events.start[i]! + events.duration[i]! >= at - slack) best = i;
    }
    return best;
  };

  const down = (event: PointerEvent): void => {
    canvas.current!.focus();
    canvas.current!.setPointerCapture(event.pointerId);
    drag.current = { x: event.offsetX, sight, moved: false, choose: event.shiftKey };
  };
  const move = (event: PointerEvent): void => {
    const from = drag.current;
    if (!from) {
      setPointed(under(event.offsetX, event.offsetY));
      return;
    }
    if (Math.abs(event.offsetX - from.x) > 3) from.moved = true;
    if (!from.moved) return;
    if (from.choose) {
      const [a, b] = [time(from.x), time(event.offsetX)].sort((x, y) => x - y) as [number, number];
      props.onSpan({ from: a, to: b });
    } else {
      const by = ((event.offsetX - from.x) / width) * (from.sight.to - from.sight.from);
      see({ from: from.sight.from - by, to: from.sight.to - by });
    }
  };
  const up = (event: PointerEvent): void => {
    const from = drag.current;
    drag.current = null;
    if (from && !from.moved) {
      props.onSelect(under(event.offsetX, event.offsetY));
      if (span) props.onSpan(null);
    }
  };
  const key = (event: KeyboardEvent): void => {
    const length = sight.to - sight.from;
    const middle = (sight.from + sight.to) / 2;
    const neighbour = (by: 1 | -1): void => {
      const lane = lanes.find((l) => selected !== null && l.events.includes(selected)) ?? lanes[0];
      if (!lane) return;
      const at = selected === null ? -1 : lane.events.indexOf(selected);
      const next = lane.events[Math.min(Math.max(at + by, 0), lane.events.length - 1)];
      if (next === undefined) return;
      props.onSelect(next);
      const begin = events.start[next]!;
      if (begin < sight.from || begin > sight.to) see({ from: begin - length / 2, to: begin + length / 2 });
    };
    const keys: Record<string, () => void> = {
      "+": () => zoom(0.7, middle),
      "=": () => zoom(0.7, middle),
      "-": () => zoom(1 / 0.7, middle),
      ArrowLeft: () => see({ from: sight.from - length / 8, to: sight.to - length / 8 }),
      ArrowRight: () => see({ from: sight.from + length / 8, to: sight.to + length / 8 }),
      "0": () => setSight(whole),
      n: () => neighbour(1),
      p: () => neighbour(-1),
      Escape: () => (props.onSelect(null), props.onSpan(null)),
    };
    const act = keys[event.key];
    event.stopPropagation();
    if (!act || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    act();
  };
  const told = pointed ?? selected;
  return (
    <div class="timeline">
      <div class="bar">
        <button type="button" aria-label="Zoom in" onClick={() => zoom(0.5, (sight.from + sight.to) / 2)}>
          +
        </button>
        <button type="button" aria-label="Zoom out" onClick={() => zoom(2, (sight.from + sight.to) / 2)}>
          −
        </button>
        <button type="button" onClick={() => setSight(whole)}>
          all
        </button>
        {span && (
          <button type="button" onClick={() => see(span)}>
            to the selection
          </button>
        )}
        <span class="dim wide">drag pans, wheel zooms (after a click), Shift and drag selects a time; n and p go to the next event</span>
      </div>
      <div class="scroll lanes">
        <canvas
          ref={canvas}
          tabIndex={0}
          role="application"
          aria-label={`${props.label}: ${lanes.reduce((sum, lane) => sum + lane.events.length, 0)} events in ${lanes.length} lanes. Plus and minus zoom, arrows pan, n and p go to the next and previous event.`}
          style={{ width: `${width}px`, height: `${height}px` }}
          data-from={sight.from}
          data-to={sight.to}
          onPointerDown={down}
          onPointerMove={move}
          onPointerUp={up}
          onPointerLeave={() => setPointed(null)}
          onKeyDown={key}
        />
      </div>
      <p class="told mono" role="status">
        {told === null
          ? span
            ? `${seconds(span.to - span.from)} selected`
            : `${seconds(sight.to - sight.from)} in sight`
          : `${names[events.name[told]!] ?? ""} · ${props.categories[events.category[told]!]?.name ?? ""} · ${seconds(events.duration[told])} at ${seconds(events.start[told])}`}
      </p>
    </div>
  );
}

interface Picture extends Omit<TimelineProps, "lanes"> {
  lanes: Lane[];
  sight: Span;
  width: number;
  height: number;
  pointed: number | null;
}

function paint(pen: CanvasRenderingContext2D, p: Picture, style: CSSStyleDeclaration): void {
  const colour = (name: string): string => style.getPropertyValue(name) || "#888";
  const { events, names, sight, width, height } = p;
  const perSecond = width / (sight.to - sight.from);
  const x = (t: number): number => (t - sight.from) * perSecond;
  const dark = p.theme === "dark";
  pen.clearRect(0, 0, width, height);
  pen.font = "11px system-ui, sans-serif";
  pen.textBaseline = "middle";

  const every = step(sight.to - sight.from, width / 110);
  pen.strokeStyle = colour("--line");
  pen.fillStyle = colour("--dim");
  for (const { at, text } of ticks(sight.from, sight.to, every)) {
    pen.beginPath();
    pen.moveTo(Math.round(x(at)) + 0.5, 0);
    pen.lineTo(Math.round(x(at)) + 0.5, height);
    pen.stroke();
    if (x(at) + 3 + pen.measureText(text).width <= width) pen.fillText(text, x(at) + 3, AXIS / 2);
  }
  for (const lane of p.lanes) {
    pen.fillStyle = colour("--fg");
    pen.fillText(lane.name, 4, lane.top - GAP / 2 + 2);
    const filled = new Float64Array(lane.rows).fill(-1); // up to which pixel each row is drawn
    for (const i of lane.events) {
      const left = x(events.start[i]!);
      if (left > width) break;
      const long = events.duration[i]! * perSecond;
      if (left + long < 0) continue;
      const row = Math.min(events.depth[i]!, 11);
      const special = i === p.selected || i === p.pointed;
      if (long < 1 && left < filled[row]! && !special) continue;
      const from = Math.max(left, 0);
      const wide = Math.max(Math.min(left + long, width) - from, 1);
      filled[row] = from + wide;
      const name = names[events.name[i]!] ?? "";
      const faded = p.marked !== undefined && !p.marked(i);
      const y = lane.top + row * ROW;
      pen.fillStyle = faded ? colour("--line") : (p.categories[events.category[i]!]?.colour ?? "#888");
      pen.globalAlpha = faded ? 1 : dark ? 0.5 : 0.55;
      pen.fillRect(from, y, wide, ROW - 2);
      pen.globalAlpha = 1;
      if (special) {
        pen.strokeStyle = colour("--accent");
        pen.lineWidth = 2;
        pen.strokeRect(from + 1, y + 1, Math.max(wide - 2, 1), ROW - 4);
        pen.lineWidth = 1;
      }
      if (wide > 30) {
        pen.fillStyle = faded ? colour("--dim") : colour("--fg");
        const letters = Math.floor((wide - 6) / 6.2);
        pen.fillText(name.length > letters ? `${name.slice(0, Math.max(letters - 1, 1))}…` : name, from + 3, y + ROW / 2 - 1);
      }
    }
  }
  if (p.span) {
    pen.fillStyle = dark ? "#79b8ff33" : "#0550ae22";
    pen.fillRect(x(p.span.from), AXIS, (p.span.to - p.span.from) * perSecond, height);
  }
}
