"""A model hub on this machine: as much of the hub's protocol as downloading a model needs."""

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextlib.contextmanager
def serve(folder: Path) -> Iterator[str]:
    """The address of a hub that has `lab/tiny` (those files) and the gated `lab/gated`."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            files = sorted(folder.iterdir())
            if path == "/api/models/lab/tiny/revision/main":
                listing = [{"rfilename": f.name} for f in files]
                self.reply(200, json.dumps({"id": "lab/tiny", "sha": COMMIT, "siblings": listing}))
            elif path.startswith("/api/models/lab/tiny/revision/"):
                self.reply(404, "", X_Error_Code="RevisionNotFound")
            elif path.startswith("/api/models/lab/tiny/tree/"):
                tree = [
                    {"type": "file", "path": f.name, "size": f.stat().st_size, "oid": "0" * 40}
                    for f in files
                ]
                self.reply(200, json.dumps(tree))
            elif path.startswith("/lab/tiny/resolve/"):
                data = (folder / path.rpartition("/")[2]).read_bytes()
                tag = hashlib.sha1(data).hexdigest()
                self.reply(200, data, ETag=f'"{tag}"', X_Repo_Commit=COMMIT)
            elif "/lab/gated/" in path:
                self.reply(403, "", X_Error_Code="GatedRepo")
            else:
                self.reply(404, "", X_Error_Code="RepoNotFound")

        def reply(self, code: int, body: str | bytes, **headers: str) -> None:
            data = body.encode() if isinstance(body, str) else body
            self.send_response(code)
            for key, value in headers.items():
                self.send_header(key.replace("_", "-"), value)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
