// A text with line numbers, search and folding, whose lines can be linked to lines elsewhere. CodeMirror draws only what
// is in sight, so that 50,000 lines open at once.
import { defaultKeymap } from "@codemirror/commands";
import { python } from "@codemirror/lang-python";
import {
  codeFolding,
  foldGutter,
  foldKeymap,
  foldService,
  HighlightStyle,
  StreamLanguage,
  syntaxHighlighting,
} from "@codemirror/language";
import { findNext, openSearchPanel, search, SearchQuery, searchKeymap, setSearchQuery } from "@codemirror/search";
import { Compartment, EditorState, RangeSetBuilder, StateEffect, StateField, type Extension } from "@codemirror/state";
import { Decoration, EditorView, gutter, GutterMarker, keymap, lineNumbers, type DecorationSet } from "@codemirror/view";
import { tags } from "@lezer/highlight";
import { useEffect, useRef } from "preact/hooks";
import { attributes, openAll, tinted } from "./decorations.ts";

export type Language = "python" | "hlo" | "plain";

export interface CodeProps {
  text: string;
  language: Language;
  label: string; // for a screen reader
  root: ShadowRoot;
  marked: readonly number[]; // linked lines, from 0, ascending
  guessed?: readonly number[]; // lines whose links are inferred, from 0, ascending
  at?: number | null; // the line to bring into sight, from 0
  onLine: (line: number, text: string) => void; // a line was clicked, or reached with the keyboard
  notes?: readonly string[]; // for each line, the text beside it
  hues?: readonly (number | null)[]; // for each line its standing colour
  attributes?: boolean; // whether the attributes of instructions are shown, and not folded
  height?: number; // in pixels; otherwise it fills the place that it is in
  first?: number; // the number of the first line
  search?: { query: string; key: number }; // the panel opens when `key` changes
}

// One highlighter for StableHLO, HLO and jaxpr, based on their common syntax.
const hlo = StreamLanguage.define<null>({
  startState: () => null,
  token(stream) {
    if (stream.eatSpace()) return null;
    if (stream.match(/^(\/\/|#).*/)) return "comment";
    if (stream.match(/^"(?:[^"\\]|\\.)*"/)) return "string";
    if (stream.match(/^%[\w.#-]+/)) return "variableName";
    if (stream.match(/^@[\w.-]+/)) return "function";
    if (stream.match(/^(tensor|memref|tuple)?<[^<>]*>/)) return "typeName";
    if (stream.match(/^(pred|bf16|[fsuc]\d+|[if]\d+(?:x\w+)?)\b(\[[\d,<=]*\])?(\{[\d,]*\})?/)) return "typeName";
    if (stream.match(/^(ROOT|ENTRY|HloModule|module|func\.func|return|let|in|lambda)\b/)) return "keyword";
    if (stream.match(/^(stablehlo|chlo|mhlo|func|sdy)\.[\w.]+/)) return "operator";
    if (stream.match(/^[a-z][\w-]*(?=\(|\[)/)) return "operator";
    if (stream.match(/^[a-z_]+(?==)/)) return "propertyName";
    if (stream.match(/^-?\d+(\.\d+)?(e[+-]?\d+)?/i)) return "number";
    if (!stream.match(/^[\w.-]+/)) stream.next();
    return null;
  },
});

// A line that ends in an opening bracket folds up to the next line that is indented as little.
const folds = foldService.of((state, start, end) => {
  const line = state.doc.lineAt(start);
  if (!/[{([]\s*$/.test(line.text)) return null;
  const indent = line.text.search(/\S/);
  for (let n = line.number + 1; n <= state.doc.lines; n++) {
    const next = state.doc.line(n);
    const own = next.text.search(/\S/);
    if (own >= 0 && own <= indent) return n > line.number + 1 ? { from: end, to: next.from - 1 } : null;
  }
  return null;
});

// A guess must not look certain: the mark of a link that is inferred is dashed.
interface Marked {
  lines: readonly number[];
  guessed: ReadonlySet<number>;
}
const setMarks = StateEffect.define<Marked>();
const mark = Decoration.line({ class: "cm-linked" });
const guess = Decoration.line({ class: "cm-linked cm-guessed", attributes: { title: "inferred: XLA recorded no source location" } });
const marks = StateField.define<DecorationSet>({
  create: () => Decoration.none,
  update(value, transaction) {
    for (const effect of transaction.effects) {
      if (!effect.is(setMarks)) continue;
      const builder = new RangeSetBuilder<Decoration>();
      const { doc } = transaction.state;
      for (const line of effect.value.lines) {
        const kind = effect.value.guessed.has(line) ? guess : mark;
        if (line >= 0 && line < doc.lines) builder.add(doc.line(line + 1).from, doc.line(line + 1).from, kind);
      }
      value = builder.finish();
    }
    return value;
  },
  provide: (field) => EditorView.decorations.from(field),
});

class Note extends GutterMarker {
  constructor(private readonly text: string) {
    super();
  }

  override eq(other: Note): boolean {
    return other.text === this.text;
  }

  override toDOM(): Node {
    return document.createTextNode(this.text);
  }
}

const colours = syntaxHighlighting(
  HighlightStyle.define([
    { tag: tags.comment, color: "var(--code-dim)", fontStyle: "italic" },
    { tag: [tags.keyword, tags.operatorKeyword, tags.controlKeyword], color: "var(--code-keyword)" },
    { tag: [tags.string], color: "var(--code-string)" },
    { tag: [tags.number, tags.bool, tags.null], color: "var(--code-number)" },
    { tag: [tags.typeName, tags.className], color: "var(--code-type)" },
    { tag: [tags.function(tags.variableName), tags.definition(tags.variableName)], color: "var(--accent)" },
    { tag: [tags.operator], color: "var(--code-keyword)" },
    { tag: [tags.propertyName], color: "var(--code-dim)" },
  ]),
);

const look = EditorView.theme({
  "&": { color: "var(--fg)", backgroundColor: "var(--bg)", flex: "1 1 auto", minHeight: "0" },
  "&.cm-focused": { outline: "none" }, // the pane around it has one, which no gutter covers
  ".cm-scroller": { fontFamily: "var(--jp-code-font-family, ui-monospace, Menlo, Consolas, monospace)", fontSize: "12px", lineHeight: "1.5" },
  ".cm-content": { caretColor: "var(--fg)" },
  ".cm-gutters": { backgroundColor: "var(--raised)", color: "var(--dim)", border: "0" },
  ".cm-linked": { backgroundColor: "var(--mark)" },
  ".cm-guessed": { backgroundColor: "color-mix(in srgb, var(--mark) 45%, transparent)", outline: "1px dashed var(--dim)", outlineOffset: "-1px" },
  ".cm-notes .cm-gutterElement": { padding: "0 6px", textAlign: "right", minWidth: "4em" },
  ".cm-panels": { backgroundColor: "var(--raised)", color: "var(--fg)" },
  ".cm-searchMatch": { backgroundColor: "var(--mark2)", outline: "1px solid var(--accent)" },
  ".cm-cursor": { borderLeftColor: "var(--fg)" },
  "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": { backgroundColor: "var(--mark2)" },
  ".cm-foldPlaceholder": { backgroundColor: "var(--raised)", color: "var(--dim)", borderColor: "var(--line)" },
  ".cm-textfield": { backgroundColor: "var(--bg)", color: "var(--fg)", border: "1px solid var(--line)" },
  ".cm-button": { backgroundImage: "none", backgroundColor: "var(--bg)", color: "var(--fg)", border: "1px solid var(--line)" },
});

const LANGUAGES: Record<Language, Extension> = { python: python(), hlo, plain: [] };

function noted(notes: readonly string[] | undefined): Extension {
  if (!notes?.some(Boolean)) return [];
  const widest = notes.reduce((a, b) => (b.length > a.length ? b : a), "");
  return gutter({
    class: "cm-notes",
    lineMarker: (view, line) => {
      const text = notes[view.state.doc.lineAt(line.from).number - 1];
      return text ? new Note(text) : null;
    },
    initialSpacer: () => new Note(widest),
  });
}

export function Code(props: CodeProps) {
  const place = useRef<HTMLDivElement>(null);
  const editor = useRef<EditorView | null>(null);
  const now = useRef(props);
  now.current = props;
  const beside = useRef(new Compartment());
  const tints = useRef(new Compartment());

  useEffect(() => {
    const view = new EditorView({
      root: props.root,
      parent: place.current!,
      state: EditorState.create({
        doc: props.text,
        extensions: [
          beside.current.of(noted(props.notes)),
          lineNumbers({ formatNumber: (n) => String(n - 1 + (now.current.first ?? 1)) }),
          foldGutter(),
          codeFolding(),
          folds,
          LANGUAGES[props.language],
          search({ top: true }),
          colours,
          look,
          tints.current.of(tinted(props.hues)),
          attributes,
          marks,
          EditorState.readOnly.of(true),
          EditorView.contentAttributes.of({ "aria-label": props.label, "aria-readonly": "true", tabindex: "0" }),
          keymap.of([...searchKeymap, ...foldKeymap, ...defaultKeymap]),
          EditorView.updateListener.of((update) => {
            if (!update.selectionSet) return;
            const line = update.state.doc.lineAt(update.state.selection.main.head);
            now.current.onLine(line.number - 1, line.text);
          }),
          // The front end's shortcuts must not receive keys pressed in here.
          EditorView.domEventHandlers({ keydown: () => false }),
        ],
      }),
    });
    editor.current = view;
    return () => view.destroy();
  }, [props.text, props.language]);

  useEffect(() => {
    editor.current?.dispatch({ effects: beside.current.reconfigure(noted(props.notes)) });
  }, [props.notes]);

  useEffect(() => {
    editor.current?.dispatch({ effects: tints.current.reconfigure(tinted(props.hues)) });
  }, [props.hues]);

  useEffect(() => {
    editor.current?.dispatch({ effects: openAll.of(props.attributes ?? false) });
  }, [props.attributes, props.text]);

  useEffect(() => {
    editor.current?.dispatch({ effects: setMarks.of({ lines: props.marked, guessed: new Set(props.guessed) }) });
  }, [props.marked, props.guessed, props.text]);

  useEffect(() => {
    const view = editor.current;
    const { at } = props;
    if (!view || at == null || at < 0 || at >= view.state.doc.lines) return;
    // Not CodeMirror's own `scrollIntoView`: it scrolls the page too, which moves the clicked line away from the mouse.
    const { from } = view.state.doc.line(at + 1);
    view.requestMeasure({
      read: () => view.lineBlockAt(from),
      write: ({ top, height }) => {
        const above = Math.floor((view.scrollDOM.clientHeight / height - 1) / 2); // whole lines: none is cut at the top
        view.scrollDOM.scrollTo(0, top - above * height);
      },
    });
  }, [props.at, props.text]);

  useEffect(() => {
    const view = editor.current;
    if (!props.search?.key || !view) return;
    openSearchPanel(view);
    if (!props.search.query) return;
    view.dispatch({ effects: setSearchQuery.of(new SearchQuery({ search: props.search.query })) });
    findNext(view);
  }, [props.search?.key, props.text]);

  const height = props.height === undefined ? undefined : { height: `${props.height}px` };
  return <div class="code" ref={place} style={height} onKeyDown={(e) => e.stopPropagation()} />;
}
