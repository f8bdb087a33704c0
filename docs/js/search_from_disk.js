// The site's search runs in a worker, and a browser starts no worker for a page that was opened from the disk. There,
// this runs the worker's script in a hidden frame, which has a global scope of its own as a worker has.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    onmessage = null;

    constructor(address) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      this.scope = this.frame.contentWindow;
      this.scope.postMessage = (data) => setTimeout(() => this.hear(data));
      const script = this.frame.contentDocument.createElement("script");
      this.ready = new Promise((done) => script.addEventListener("load", done));
      script.src = address;
      this.frame.contentDocument.body.append(script);
    }

    // What the script posts to the page, in a task of its own as a worker's messages are.
    hear(data) {
      const event = new MessageEvent("message", { data });
      this.dispatchEvent(event);
      this.onmessage?.(event);
    }

    async postMessage(data) {
      await this.ready;
      const event = new this.scope.MessageEvent("message", { data });
      this.scope.dispatchEvent(event);
    }

    terminate() {
      this.frame.remove();
    }
  };
}
