// What is drawn over a program's text beside its syntax: the standing colours of its lines, and attributes that fold.
// Both are made for the lines in sight alone.
import { StateEffect, StateField, type Extension } from "@codemirror/state";
import { Decoration, EditorView, MatchDecorator, ViewPlugin, WidgetType, type DecorationSet, type ViewUpdate } from "@codemirror/view";

// -- colours ------------------------------------------------------------------------------------------------

// The hue of the nth line of user code, for good. Neighbours differ: each is a golden angle from the one before.
export const hueOf = (l: number): number => Math.round((40 + l * 137.508) % 360);

// A colour for each line that has one (a hue, or null), as Compiler Explorer has them.
export function tinted(hues: readonly (number | null)[] | undefined): Extension {
  if (!hues?.some((hue) => hue !== null)) return [];
  const known = new Map<number, Decoration>();
  const tint = (hue: number): Decoration => {
    const found = known.get(hue) ?? Decoration.line({ class: "cm-tinted", attributes: { style: `--hue: ${hue}` } });
    known.set(hue, found);
    return found;
  };
  const draw = (view: EditorView): DecorationSet => {
    const { doc } = view.state;
    const lines = view.visibleRanges.flatMap(({ from, to }) => {
      const [first, last] = [doc.lineAt(from).number, doc.lineAt(to).number];
      return Array.from({ length: last - first + 1 }, (_, i) => first + i);
    });
    const ranges = [...new Set(lines)].flatMap((n) => {
      const hue = hues[n - 1] ?? null;
      return hue === null ? [] : [tint(hue).range(doc.line(n).from)];
    });
    return Decoration.set(ranges);
  };
  return ViewPlugin.fromClass(
    class {
      decorations: DecorationSet;

      constructor(view: EditorView) {
        this.decorations = draw(view);
      }

      update(update: ViewUpdate): void {
        if (update.viewportChanged || update.docChanged) this.decorations = draw(update.view);
      }
    },
    { decorations: (plugin) => plugin.decorations },
  );
}

// -- attributes -----------------------------------------------------------------------------------------------

// Attributes of an instruction besides its computation: its origin, a trivial sharding, and settings.
const METADATA = String.raw`metadata=\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\}`;
const CONFIG = String.raw`(?:backend_config|frontend_attributes)=\{.*\}$`;
export const ATTRIBUTES = new RegExp(
  String.raw`(?:, (?:${METADATA}|sharding=\{replicated\}|${CONFIG}))+| \{mhlo\.sharding = "\{replicated\}"\}`,
  "g",
);

// Where folded attributes were opened (their start), and whether all of them are.
interface Opened {
  all: boolean;
  at: ReadonlySet<number>;
}
const open = StateEffect.define<number>();
export const openAll = StateEffect.define<boolean>();
const opened = StateField.define<Opened>({
  create: () => ({ all: false, at: new Set() }),
  update(value, transaction) {
    for (const effect of transaction.effects) {
      if (effect.is(open)) value = { ...value, at: new Set([...value.at, effect.value]) };
      if (effect.is(openAll)) value = { all: effect.value, at: new Set() };
    }
    return value;
  },
});

class Folded extends WidgetType {
  constructor(
    private readonly text: string,
    private readonly from: number,
  ) {
    super();
  }

  override eq(other: Folded): boolean {
    return other.text === this.text && other.from === this.from;
  }

  override toDOM(view: EditorView): HTMLElement {
    const made = document.createElement("span");
    made.className = "cm-attributes";
    made.textContent = "…";
    made.title = this.text;
    made.onclick = () => view.dispatch({ effects: open.of(this.from) });
    return made;
  }

  override ignoreEvent(): boolean {
    return false;
  }
}

// Attributes are "…" until they are clicked, or until they contain the search text.
export const attributes: Extension = [
  opened,
  ViewPlugin.fromClass(
    class {
      decorations: DecorationSet;
      private readonly matches = new MatchDecorator({
        regexp: ATTRIBUTES,
        maxLength: 4000,
        decorate: (add, from, to, match, view) => {
          const { all, at } = view.state.field(opened);
          const { from: start, to: end } = view.state.selection.main;
          const within = start < end && start < to && end > from;
          if (!all && !at.has(from) && !within) add(from, to, Decoration.replace({ widget: new Folded(match[0], from) }));
        },
      });

      constructor(view: EditorView) {
        this.decorations = this.matches.createDeco(view);
      }

      update(update: ViewUpdate): void {
        const asked = update.startState.field(opened) !== update.state.field(opened);
        if (asked || update.selectionSet || update.viewportChanged) this.decorations = this.matches.createDeco(update.view);
      }
    },
    { decorations: (plugin) => plugin.decorations },
  ),
];
