// The site's frame: titles, order of pages, search. What the pages say is written by scripts/sync.py or by hand in docs/*.md.
import { existsSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { defineConfig } from 'vitepress'

const here = (name) => fileURLToPath(new URL(`../${name}.md`, import.meta.url))
const group = (text, pages) => ({
  text,
  items: pages.filter(([, name]) => existsSync(here(name))).map(([text, name]) => ({ text, link: `/${name}` })),
})

export default defineConfig({
  lang: 'en',
  title: 'llmclick',
  description: 'Improve a language model on tasks whose answers can be checked.',
  base: process.env.DOCS_BASE || '/',
  head: [['link', { rel: 'icon', type: 'image/svg+xml', href: `${process.env.DOCS_BASE || '/'}favicon.svg` }]],
  lastUpdated: false,
  themeConfig: {
    outline: [2, 3],
    nav: [
      { text: 'Quickstart', link: '/quickstart' },
      { text: 'Configuration', link: '/configuration' },
      { text: 'Commands', link: '/commands' },
    ],
    sidebar: [
      group('Start', [
        ['Quickstart', 'quickstart'],
        ['Rewards', 'rewards'],
        ['Data', 'data'],
      ]),
      group('Methods', [
        ['GRPO', 'grpo'],
        ['CISPO', 'cispo'],
        ['Methods as settings', 'methods'],
      ]),
      group('Runs', [
        ['Reading a run', 'reading-a-run'],
        ['The gate', 'gate'],
        ['Resume and caches', 'resume'],
        ['Troubleshooting', 'troubleshooting'],
        ['Speed', 'speed'],
        ['Reliability', 'reliability'],
      ]),
      group('Look up', [
        ['Configuration', 'configuration'],
        ['Commands', 'commands'],
        ['Errors and exit codes', 'errors'],
        ['Changelog', 'changelog'],
        ['Contributing', 'contributing'],
      ]),
    ],
    search: { provider: 'local' },
    docFooter: { prev: 'Before', next: 'Next' },
  },
})
