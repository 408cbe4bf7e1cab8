// VitePress' own theme with the system's fonts (no font file, nothing is asked of another host), and what a run printed beside
// the landing page's title.
import { h } from 'vue'
import { useData } from 'vitepress'
import Theme from 'vitepress/theme-without-fonts'
import './site.css'

export default {
  extends: Theme,
  Layout: () =>
    h(Theme.Layout, null, {
      'home-hero-image': () => h('pre', { class: 'first-run', tabindex: 0 }, useData().frontmatter.value.printed),
    }),
}
