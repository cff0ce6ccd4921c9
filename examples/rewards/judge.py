# Stands in for a judge: answers every chat with a score, longer questions with a lower one. Prints its port.
import http.server
import json


class Judge(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        chat = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        score = 1 / len(chat["messages"][0]["content"])
        body = json.dumps({"choices": [{"message": {"content": f"<score>{score:.6f}</score>"}}]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Judge)
print(server.server_port, flush=True)
server.serve_forever()
