import { render } from 'preact';
import 'uplot/dist/uPlot.min.css';
import './styles/base.css';
import './styles/shell.css';
import './styles/parts.css';
import './styles/lanes.css';
import './styles/pages.css';
import './styles/docs.css';
import { App } from './app.tsx';
import { watchHistory } from './data/router.ts';
import { applyTheme } from './data/theme.ts';

applyTheme();
watchHistory();
const root = document.getElementById('app');
if (root) render(<App />, root);
