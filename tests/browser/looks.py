"""Faults of a page's text that a reader would see: text outside its box, and words that are broken."""

from __future__ import annotations

from playwright.sync_api import Locator

# Text may be cut where its box says so (an ellipsis), and may go on where its box scrolls. A word may be broken only if
# it fits on no line of its box. Looks into shadows, too; leaves out what is folded or hidden.
_FAULTS = r"""
root => {
  const faults = [];
  const scrolls = style => /auto|scroll/.test(style.overflowX);
  const cut = style => /hidden|clip/.test(style.overflowX);
  const box = element => { // the nearest ancestor that is a box, and not inline
    let e = element;
    while (e && /^(inline|contents)$/.test(getComputedStyle(e).display)) e = e.parentElement ?? e.getRootNode().host;
    return e;
  };
  const free = element => { // whether the text may go on: something around it scrolls, or cuts with an ellipsis
    for (let e = element; e && e !== root.parentElement; e = e.parentElement ?? e.getRootNode().host) {
      const style = getComputedStyle(e);
      if (scrolls(style)) return true;
      if (cut(style) && (style.textOverflow === "ellipsis" || e.title || e.role === "img")) return true;
    }
    return false;
  };
  const look = text => {
    const element = text.parentElement;
    if (!element || !text.data.trim() || element.closest("svg, canvas, .cm-editor, style, script, option")) return;
    if (!element.checkVisibility({ contentVisibilityAuto: true, visibilityProperty: true })) return;
    const around = box(element), range = document.createRange();
    if (!around) return;
    range.selectNodeContents(text);
    const inner = range.getBoundingClientRect(), outer = around.getBoundingClientRect();
    if (!inner.width || !outer.width) return;
    if (inner.right > outer.right + 2 && !free(around)) faults.push(`overflows: ${text.data.trim().slice(0, 60)}`);
    for (const word of text.data.matchAll(/[\p{L}\p{N}]+/gu)) {
      range.setStart(text, word.index);
      range.setEnd(text, word.index + word[0].length);
      const lines = [...range.getClientRects()].filter(r => r.width);
      const width = lines.reduce((sum, r) => sum + r.width, 0);
      if (lines.length > 1 && new Set(lines.map(r => Math.round(r.top))).size > 1 && width <= outer.width - 2)
        faults.push(`is broken: ${word[0].slice(0, 60)}`);
    }
  };
  const walk = node => {
    if (node.nodeType === Node.TEXT_NODE) look(node);
    if (node.shadowRoot) walk(node.shadowRoot);
    for (const child of node.childNodes) walk(child);
  };
  walk(root);
  return [...new Set(faults)];
}
"""


def faults_of_text(element: Locator) -> list[str]:
    """The texts inside an element that go beyond their box, and the words that are broken though they would fit."""
    found: list[str] = element.evaluate(_FAULTS)
    return found
