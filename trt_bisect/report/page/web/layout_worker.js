import * as dagre from "@dagrejs/dagre";

self.onmessage = (event) => self.postMessage(Object.keys(dagre));
