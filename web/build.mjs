/** Builds the page: app.js and app.css for the Python package, `--check` compares them with a fresh build, `--test` runs the unit tests. */
import { build, context } from "esbuild";
import { spawnSync } from "node:child_process";
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const HERE = dirname(fileURLToPath(import.meta.url));
const BUNDLE = join(HERE, "..", "src", "headcount", "runs", "report", "bundle");
const FILES = ["app.js", "app.css"];
const LIMIT = 235_000;

const options = (outdir) => ({
  absWorkingDir: HERE,
  entryPoints: { app: "src/main.tsx" },
  outdir,
  bundle: true,
  minify: true,
  format: "iife",
  target: ["chrome111", "firefox113", "safari16.4"],
  charset: "utf8",
  legalComments: "inline",
  jsx: "automatic",
  jsxImportSource: "preact",
  metafile: true,
  logLevel: "warning",
});

/** The libraries of a bundle, from the files that went into it. */
function libraries(metafile) {
  const names = Object.keys(metafile.inputs).map((file) => /node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(file)?.[1]);
  return [...new Set(names.filter(Boolean))].sort();
}

/** The licence texts, each once with the libraries it is of: they must go wherever the code goes, so into every report. */
function notices(names) {
  const texts = new Map();
  for (const name of names) {
    const folder = join(HERE, "node_modules", name);
    const file = readdirSync(folder).find((entry) => /^licen[cs]e/i.test(entry));
    if (!file) throw new Error(`${name} comes without a licence file`);
    const { version } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
    const text = readFileSync(join(folder, file), "utf8").trim().replaceAll("\r\n", "\n");
    texts.set(text, [...(texts.get(text) ?? []), `${name} ${version}`]);
  }
  const parts = [...texts].map(([text, of]) => `${of.join(", ")}\n\n${text}`);
  return `/*!\nThis page contains these libraries.\n\n${parts.join("\n\n----\n\n")}\n*/\n`;
}

async function make(outdir) {
  const { metafile } = await build(options(outdir));
  const script = join(outdir, "app.js");
  writeFileSync(script, readFileSync(script, "utf8") + notices(libraries(metafile)));
  for (const file of FILES) {
    const text = readFileSync(join(outdir, file), "utf8");
    if (/<\/(script|style)|<!--/i.test(text)) throw new Error(`${file} would end the element that it is written into`);
  }
  const size = FILES.reduce((sum, file) => sum + readFileSync(join(outdir, file)).length, 0);
  if (size > LIMIT) throw new Error(`the bundle has ${size} bytes, more than ${LIMIT}`);
  return size;
}

async function inTemporary(work) {
  const folder = mkdtempSync(join(tmpdir(), "headcount-web-"));
  try {
    return await work(folder);
  } finally {
    rmSync(folder, { recursive: true });
  }
}

async function check(folder) {
  await make(folder);
  const stale = FILES.filter((file) => readFileSync(join(folder, file), "utf8") !== readFileSync(join(BUNDLE, file), "utf8"));
  if (stale.length) throw new Error(`${stale.join(" and ")} of the package are not what the sources make: run npm run build`);
}

async function test(folder) {
  const files = readdirSync(join(HERE, "test")).filter((file) => file.endsWith(".test.ts"));
  const entryPoints = files.map((file) => join("test", file));
  await build({ absWorkingDir: HERE, entryPoints, outdir: folder, bundle: true, platform: "node", format: "esm", outExtension: { ".js": ".mjs" }, logLevel: "warning" });
  const { status } = spawnSync(process.execPath, ["--test", ...readdirSync(folder).map((file) => join(folder, file))], { stdio: "inherit" });
  if (status !== 0) throw new Error("unit tests failed");
}

const [action] = process.argv.slice(2);
try {
  if (action === "--check") await inTemporary(check);
  else if (action === "--test") await inTemporary(test);
  else if (action === "--watch") await (await context(options(BUNDLE))).watch();
  else console.log(`${await make(BUNDLE)} bytes`);
} catch (error) {
  console.error(error.message);
  process.exitCode = 1;
}
