// Search runs in a Worker, which browsers refuse to pages opened from the disk. There, run its script in a hidden frame.
class IframeWorker extends EventTarget {
  constructor(url) {
    super();
    this.frame = document.createElement("iframe");
    this.frame.hidden = true;
    document.body.append(this.frame);
    const { contentDocument: inner, contentWindow: scope } = this.frame;
    inner.open();
    scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
    this.ready = new Promise((resolve) => scope.addEventListener("load", resolve));
    inner.write(`<script src="${url}"></script>`);
    inner.close();
  }

  postMessage(data) {
    this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
  }

  terminate() {
    this.frame.remove();
  }
}

if (location.protocol === "file:") window.Worker = IframeWorker;
