"""Clients that misbehave, and the end of the server: others are served all the while."""
import http.client
import json
import os
import pathlib
import signal
import socket
import threading
import time

import pytest
from server_client import API_KEY, MODEL, Client, Server, free_port, lockstep_command

STORY = {"model": MODEL, "prompt": "The capital of France is", "temperature": 0, "max_tokens": 4}


def assert_serves(client):
    answer = client.post("/v1/completions", STORY)
    assert answer.status == 200 and answer.json()["usage"]["completion_tokens"] == 4


def raw(port, data, wait=5.0):
    """What the server says to these bytes until it closes or says no more."""
    with socket.create_connection(("127.0.0.1", port), timeout=wait) as connection:
        connection.sendall(data)
        said = b""
        try:
            while part := connection.recv(65536):
                said += part
        except (TimeoutError, ConnectionResetError):
            pass
        return said


def post_bytes(body, length=None, path="/v1/completions"):
    head = (f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {API_KEY}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body) if length is None else length}\r\nConnection: close\r\n\r\n")
    return head.encode() + body


def status_of(said):
    return int(said.split(b" ", 2)[1])


def test_huge_body(serving):
    assert status_of(raw(serving.port, post_bytes(b"{", length=10**12))) == 413
    assert_serves(serving.client())


@pytest.mark.parametrize("data, statuses", [
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100), {400}),
    (b"GET / HTTP/9.9\r\n\r\n", {400, 505}),
    (b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", {400}),
    (b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n\r\n", {400, 414, 431}),
    (b"GET /health HTTP/1.1\r\n" + b"X: " + b"y" * 200_000 + b"\r\n\r\n", {400, 431}),
], ids=["tls", "version", "length", "target", "header"])
def test_not_http(serving, data, statuses):
    said = raw(serving.port, data)
    assert not said or status_of(said) in statuses
    assert_serves(serving.client())


@pytest.mark.parametrize("body", [b"\xff\xfe", b"[" * 100_000, b'{"model": "base", "prompt": "\\ud800", "max_tokens": 1}',
                                  b'{"model": "base", "prompt": ' + b"[[1]," * 50_000 + b"]}", b'{"prompt": 1e999}', b"null"],
                         ids=["not UTF-8", "deep", "half a surrogate", "unclosed", "infinite", "null"])
def test_bodies_that_are_not_requests(serving, body):
    assert status_of(raw(serving.port, post_bytes(body), wait=30)) in (200, 400)
    assert_serves(serving.client())


def test_slow_clients_hold_nobody_up(serving):
    """Heads that never end, bodies that never come, streams that nobody reads."""
    held = []
    try:
        for number in range(60):
            connection = socket.create_connection(("127.0.0.1", serving.port), timeout=30)
            held.append(connection)
            if number % 3 == 0:
                connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Slow: ")
            elif number % 3 == 1:
                connection.sendall(post_bytes(b'{"model"', length=1000))
            else:
                connection.sendall(post_bytes(json.dumps({**STORY, "max_tokens": 32, "ignore_eos": True, "stream": True}).encode()))
        start = time.monotonic()
        for _ in range(3):
            assert_serves(serving.client())
        assert time.monotonic() - start < 60
    finally:
        for connection in held:
            connection.close()
    assert_serves(serving.client())


def test_leaving_ends_the_request(serving):
    """The engine drops what nobody waits for."""
    client = serving.client()
    held = []
    for _ in range(4):
        connection = socket.create_connection(("127.0.0.1", serving.port), timeout=30)
        connection.sendall(post_bytes(json.dumps({**STORY, "max_tokens": 450, "ignore_eos": True}).encode()))
        held.append(connection)
    time.sleep(0.5)
    for connection in held:
        connection.close()
    deadline = time.monotonic() + 3
    while running(client) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert running(client) == 0


def running(client):
    return sum(float(line.rsplit(" ", 1)[1]) for line in client.get("/metrics").text.splitlines()
               if line.startswith(("vllm:num_requests_running{", "vllm:num_requests_waiting{")))


@pytest.fixture
def start(request, smollm2, tmp_path):
    """Starts a server with more options; ended with the test."""
    servers = []

    def begin(*more):
        port = free_port()
        server = Server(*lockstep_command(request.config.getoption("--lockstep"), smollm2, port, more), port,
                        tmp_path / f"log{len(servers)}")
        servers.append(server)
        return server.wait_ready()

    yield begin
    for server in servers:
        server.stop()


def test_adapters_only_below_the_root(start, adapter_paths):
    root = pathlib.Path(adapter_paths["A"])
    server = start("--lora-root", root)
    client = Client(server.port)
    link = root / "link"
    link.symlink_to(adapter_paths["B"])
    try:
        for path in (adapter_paths["B"], f"{root}/../b", "../b", str(link), "/etc"):
            for route in ("/v1/load_lora_adapter", "/load_lora_adapter"):
                answer = client.post(route, {"lora_name": "x", "lora_path": path})
                assert 400 <= answer.status <= 500 and "adapter_model" not in answer.text, path
        assert [model["id"] for model in client.get("/v1/models").json()["data"]] == [MODEL]
        assert client.post("/v1/load_lora_adapter", {"lora_name": "x", "lora_path": str(root)}).status == 200
        assert_serves(client)
    finally:
        link.unlink()


def test_drain(start):
    """On SIGTERM what runs is finished, nothing new is taken, and the process ends with 0."""
    server = start()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", "/v1/completions", json.dumps({**STORY, "max_tokens": 100, "ignore_eos": True, "stream": True}),
                       {"Content-Type": "application/json", "Authorization": f"Bearer {API_KEY}"})
    answer = connection.getresponse()
    first = answer.readline()
    assert first.startswith(b"data: ")
    os.kill(server.process.pid, signal.SIGTERM)
    refused = threading.Event()

    def late():
        try:
            if Client(server.port).post("/v1/completions", STORY).status == 503:
                refused.set()
        except OSError:
            refused.set()

    time.sleep(0.2)
    asking = threading.Thread(target=late)
    asking.start()
    rest = answer.read()
    asking.join()
    assert rest.rstrip().endswith(b"data: [DONE]") and refused.is_set()
    assert (first + rest).count(b'"text"') >= 100
    assert server.process.wait(30) == 0


def test_full_queue(start):
    """More than the queue holds: 429, and what was taken is answered."""
    server = start("--max-queue", 2, "--max-num-seqs", 1)
    statuses, lock = [], threading.Lock()

    def ask():
        status = Client(server.port).post("/v1/completions", {**STORY, "max_tokens": 64, "ignore_eos": True}).status
        with lock:
            statuses.append(status)

    asking = [threading.Thread(target=ask) for _ in range(12)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    assert set(statuses) == {200, 429} and statuses.count(200) >= 2
    assert_serves(Client(server.port))
