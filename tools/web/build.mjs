// Bundles tools/web/page and its libraries into trt_bisect/report/assets (make assets), and axe-core for the tests.

import { createHash } from "node:crypto";
import { copyFileSync, mkdirSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const report = join(here, "..", "..", "trt_bisect", "report");
const sources = join(here, "page");
const assets = join(report, "assets");
const modules = join(here, "node_modules");

const bundles = [
  ["main.js", "page.js"],
  ["tables.js", "tables.js"],
  ["index.js", "index.js"],
  ["layout_worker.js", "layout.js"],
  ["page.css", "page.css"],
];
const axe = join(here, "..", "..", "tests", "support", "axe");
const PLOTLY = "plotly.js-basic-dist-min";

function write(name, text) {
  if (/<\/script|<\/style|<!--/i.test(text)) {
    throw new Error(`${name} holds text that would end the element it is put into`);
  }
  writeFileSync(join(assets, name), text);
}

async function bundle(source, name) {
  const made = await build({
    entryPoints: [join(sources, source)],
    bundle: true,
    minify: true,
    format: "iife",
    target: "es2020",
    legalComments: "none",
    metafile: true,
    nodePaths: [modules],
    write: false,
  });
  write(name, made.outputFiles[0].text.trimEnd() + "\n");
  return Object.keys(made.metafile.inputs);
}

function packageOf(path) {
  const [, inside] = path.split("node_modules/");
  return inside
    ?.split("/")
    .slice(0, inside.startsWith("@") ? 2 : 1)
    .join("/");
}

function licence(name) {
  const about = JSON.parse(readFileSync(join(modules, name, "package.json"), "utf8"));
  const file = readdirSync(join(modules, name)).find((entry) => /^licen[cs]e/i.test(entry));
  const text = readFileSync(join(modules, name, file), "utf8").trim();
  return `${name} ${about.version} (${about.license})\n\n${text}\n`;
}

function digestOfSources() {
  const sha = createHash("sha256");
  for (const name of readdirSync(sources).sort()) {
    sha.update(`${name}\n`).update(readFileSync(join(sources, name)));
  }
  return sha.update(readFileSync(join(here, "package-lock.json"))).digest("hex");
}

mkdirSync(assets, { recursive: true });
const inputs = (await Promise.all(bundles.map(([source, name]) => bundle(source, name)))).flat();
write("plotly.js", readFileSync(join(modules, PLOTLY, "plotly-basic.min.js"), "utf8"));
const packages = new Set([PLOTLY, ...inputs.map(packageOf).filter(Boolean)]);
write(
  "LICENSES.txt",
  [...packages]
    .sort()
    .map(licence)
    .join(`\n${"-".repeat(80)}\n\n`),
);
write("SOURCES.sha256", digestOfSources() + "\n");
mkdirSync(axe, { recursive: true });
copyFileSync(join(modules, "axe-core", "axe.min.js"), join(axe, "axe.min.js"));
writeFileSync(join(axe, "LICENSE.txt"), licence("axe-core"));
