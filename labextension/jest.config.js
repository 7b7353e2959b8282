const base = require('@jupyterlab/testutils/lib/jest-config')(__dirname);

// What Lab publishes as ES modules only; jest runs CommonJS.
const esModules = [
  '@jupyter/',
  '@jupyterlab/',
  '@codemirror',
  '@lezer',
  '@marijn',
  '@microsoft',
  '@rjsf',
  'color',
  'exenv-es6',
  'lib0',
  'marked',
  'nanoid',
  'uplot',
  'vscode-ws-jsonrpc',
  'y-protocols',
  'y-websocket',
  'yjs'
];

module.exports = {
  ...base,
  reporters: ['default'],
  testRegex: '/test/.*\\.spec\\.tsx?$',
  transform: {
    ...base.transform,
    // The types are checked by `tsc`; here they are only taken off.
    '^.+\\.tsx?$': [
      'ts-jest/legacy',
      { tsconfig: 'tsconfig.test.json', diagnostics: false }
    ]
  },
  transformIgnorePatterns: [`/node_modules/(?!(${esModules.join('|')}))`]
};
