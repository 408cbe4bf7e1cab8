// VitePress' own theme with the system's fonts: no font file, and nothing is asked of another host.
import Theme from 'vitepress/theme-without-fonts'
import './site.css'

export default Theme
