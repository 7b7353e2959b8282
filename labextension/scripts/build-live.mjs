// Builds the live view for every front end that is not JupyterLab with this
// extension: one self-contained ES module and its style sheet, from which
// anywidget loads the view. Nothing is fetched from a CDN.
import { build } from 'esbuild';

const OUT = '../workbench/widgets/static';

await build({
  entryPoints: { live: 'src/live/widget.ts' },
  outdir: OUT,
  bundle: true,
  format: 'esm',
  minify: true,
  target: 'es2022',
  legalComments: 'inline',
  logLevel: 'warning'
});
await build({
  entryPoints: { live: 'style/live.css' },
  outdir: OUT,
  bundle: true,
  minify: true,
  logLevel: 'warning'
});
console.log(`the live view is in ${OUT}`);
