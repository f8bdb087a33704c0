// Bundles the live views into ../static: `shell.js`, saved with each widget, and `views.js`, sent once a page.
// `node build.mjs --tests` bundles the unit tests into build/ for `node --test`; `--outdir DIR` builds elsewhere.
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const common = {
  absWorkingDir: here,
  bundle: true,
  format: "esm",
  target: "es2022",
  jsx: "automatic",
  jsxImportSource: "preact",
  preserveSymlinks: true, // `node_modules` may be a link to another checkout's
  loader: { ".css": "text" },
  logLevel: "warning",
};

// The notices of the libraries that went into a bundle: their licenses ask for it.
function notices(metafile) {
  const packages = new Set();
  for (const input of Object.keys(metafile.inputs)) {
    const found = input.match(/^node_modules\/((?:@[^/]+\/)?[^/]+)\//);
    if (found) packages.add(found[1]);
  }
  return [...packages]
    .sort()
    .map((name) => {
      const folder = join(here, "node_modules", name);
      const { version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
      const file = readdirSync(folder).find((f) => /^licen[cs]e/i.test(f));
      const text = file ? readFileSync(join(folder, file), "utf8").trim() : `License: ${license}`;
      return `${name} ${version}\n\n${text}\n`;
    })
    .join(`\n${"-".repeat(80)}\n\n`);
}

if (process.argv.includes("--tests")) {
  const tests = readdirSync(join(here, "test")).filter((name) => name.endsWith(".test.ts"));
  await build({
    ...common,
    entryPoints: tests.map((name) => `test/${name}`),
    platform: "node",
    outdir: "build",
    outExtension: { ".js": ".mjs" },
  });
} else {
  const at = process.argv.indexOf("--outdir");
  const outdir = at < 0 ? join(here, "..", "static") : process.argv[at + 1];
  const made = await build({
    ...common,
    entryPoints: ["src/shell.ts", "src/views.ts"],
    minify: true,
    legalComments: "none",
    charset: "utf8",
    metafile: true,
    outdir,
  });
  writeFileSync(join(outdir, "LICENSES.txt"), notices(made.metafile));
}
