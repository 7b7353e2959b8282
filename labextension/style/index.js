import './base.css';
import './live.css';
import './topology.css';
import './statusbar.css';
