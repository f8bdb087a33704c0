// Whether the page is dark, and when that changes. Each front end says it in its own way.

export type Theme = "light" | "dark";

export function theme(): Theme {
  const { body, documentElement: root } = document;
  const lab = body.dataset["jpThemeLight"]; // JupyterLab, Notebook 7
  if (lab !== undefined) return lab === "true" ? "light" : "dark";
  if (/\bvscode-(dark|high-contrast)(?!-light)\b/.test(body.className)) return "dark";
  if (/\bvscode-(light|high-contrast-light)\b/.test(body.className)) return "light";
  const colab = root.getAttribute("theme");
  if (colab) return colab === "dark" ? "dark" : "light";
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

export function watchTheme(listener: (theme: Theme) => void): () => void {
  const tell = (): void => listener(theme());
  const observer = new MutationObserver(tell);
  observer.observe(document.body, { attributes: true, attributeFilter: ["class", "data-jp-theme-light"] });
  observer.observe(document.documentElement, { attributes: true, attributeFilter: ["theme"] });
  const system = matchMedia("(prefers-color-scheme: dark)");
  system.addEventListener("change", tell);
  return () => {
    observer.disconnect();
    system.removeEventListener("change", tell);
  };
}
