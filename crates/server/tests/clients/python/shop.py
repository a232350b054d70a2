"""A shop of somebody else, with its own users, SKUs, cashier and order table.

It was written apart from the server and knows nothing of it but the public API and its webhooks. Its order table is
changed by webhooks alone, each verified with the library of Standard Webhooks; its buyers and its cashier use the API
as docs/INTEGRATION.md tells them to. At the end the table must equal the server's books.

Commands of the story that runs it come as lines of JSON on its standard input, answers go to its standard output:
{"servers": [...]} where the server is now, {"manner": "..."} how webhooks are answered, {"opens": ...} begin the sale,
{"buyers": [first, last]} let so many come, {"idle": true} are all of them done?
"""

import base64
import hmac
import http.client
import http.server
import json
import os
import random
import sqlite3
import sys
import threading
import time
from urllib.parse import urlsplit

from standardwebhooks import Webhook, WebhookVerificationError

TOGETHER = 8  # buyers who come at the same time
ANSWER_S = 5
ORDER = ("order_no", "user_id", "sku", "quantity", "amount", "currency", "status", "reason")
CATALOGUE = {"PHONE-256": 699900, "BUDS-2": 49900}

servers = []
manner = "takes"
here = threading.Lock()  # around the shop's one connection to its database
db = sqlite3.connect(os.environ["SHOP_DB"], check_same_thread=False)
db.executescript(
    "PRAGMA journal_mode = WAL;"
    "CREATE TABLE IF NOT EXISTS users (user_id TEXT PRIMARY KEY, wish TEXT NOT NULL);"
    "CREATE TABLE IF NOT EXISTS products (sku TEXT PRIMARY KEY, price INTEGER NOT NULL, item_id INTEGER);"
    "CREATE TABLE IF NOT EXISTS taken (webhook_id TEXT PRIMARY KEY, body TEXT NOT NULL);"
    f"CREATE TABLE IF NOT EXISTS orders ({', '.join(ORDER)}, PRIMARY KEY (order_no));"
    "CREATE TABLE IF NOT EXISTS till (order_no TEXT PRIMARY KEY, amount INTEGER NOT NULL, refunded INTEGER DEFAULT 0);"
    "CREATE TABLE IF NOT EXISTS wrong (what TEXT);"
)


def do(sql, *values):
    with here, db:
        return db.execute(sql, values).fetchall()


# --- webhooks: the only way into the order table


def take(webhook_id, body):
    event = json.loads(body)
    with here, db:  # one transaction: an event is taken with what it changes, or not at all
        known = db.execute("SELECT body FROM taken WHERE webhook_id = ?", [webhook_id]).fetchone()
        if known is not None:
            if known[0] != body.decode():
                db.execute("INSERT INTO wrong VALUES (?)", [f"{webhook_id} came with another body"])
            return
        db.execute("INSERT INTO taken VALUES (?, ?)", [webhook_id, body.decode()])
        if event["type"].startswith("order."):
            order = event["data"]
            before = db.execute("SELECT status FROM orders WHERE order_no = ?", [order["order_no"]]).fetchone()
            if (before is None) != (event["type"] in ("order.created", "order.void")):
                db.execute("INSERT INTO wrong VALUES (?)", [f"{event['type']} after {before}: {order['order_no']}"])
            row = [order[name] for name in ORDER]
            db.execute(f"INSERT OR REPLACE INTO orders VALUES ({', '.join('?' * len(ORDER))})", row)


class Hook(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        how = manner
        if how == "hangs":
            time.sleep(ANSWER_S)
            how = "fails"
        if how == "late":
            time.sleep(random.uniform(0.1, 0.5))
        if how == "fails":
            return self.answer(503)
        try:
            Webhook(os.environ["WEBHOOK_SECRET"]).verify(body, dict(self.headers.items()))
        except WebhookVerificationError as error:
            do("INSERT INTO wrong VALUES (?)", f"not signed: {error}")
            return self.answer(401)
        take(self.headers["webhook-id"], body)
        # Taken, and the other end does not hear of it: so it comes again.
        self.answer(500 if how == "repeats" else 200)

    def answer(self, status):
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


# --- the API, as the guide says


def jwt(user):
    def part(data):
        return base64.urlsafe_b64encode(data).rstrip(b"=")

    claims = {"sub": user, "exp": int(time.time()) + 3600}
    text = b".".join(part(json.dumps(one).encode()) for one in ({"alg": "HS256", "typ": "JWT"}, claims))
    return (text + b"." + part(hmac.digest(os.environ["JWT_SECRET"].encode(), text, "sha256"))).decode()


def ask(method, path, body=None, bearer=None, **headers):
    """The status and the answer. No answer is asked for again, at any server: everything here may be repeated."""
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    if bearer:
        headers["Authorization"] = f"Bearer {bearer}"
    if body is not None:
        headers["Content-Type"] = "application/json"
    while True:
        try:
            place = urlsplit(random.choice(servers))
            link = http.client.HTTPConnection(place.hostname, place.port, timeout=ANSWER_S)
            try:
                link.request(method, f"/api/v1{path}", None if body is None else json.dumps(body), headers)
                answer = link.getresponse()
                text = answer.read()
            finally:
                link.close()
            found = json.loads(text) if text else {}
            if found.get("code") not in ("busy", "unknown", "too_hot", "rate_limited", "internal"):
                return answer.status, found
        except (OSError, http.client.HTTPException, ValueError):
            pass
        time.sleep(random.uniform(0.1, 0.4))


def as_operator(method, path, body=None, **headers):
    return ask(method, path, body, os.environ["OPERATOR"], **headers)


def open_sale(opens_ms, stock):
    items = [
        {"sku": sku, "name": sku, "price": price, "currency": "CNY", "stock": stock} for sku, price in CATALOGUE.items()
    ]
    plan = {
        "external_id": "night-1", "name": "The first night", "opens_at": opens_ms, "closes_at": opens_ms + 3_600_000,
        "pay_within_ms": 5_000, "items": items,
    }
    status, made = as_operator("POST", "/admin/activities", plan, Idempotency_Key="shop-night-1")
    assert status == 201, made
    for verb in ("publish", "warm"):
        as_operator("POST", f"/admin/activities/{made['id']}/{verb}", {})
    for item in made["items"]:
        do("INSERT OR REPLACE INTO products VALUES (?, ?, ?)", item["sku"], item["price"], item["id"])
    return {"activity": made["id"], "items": [item["id"] for item in made["items"]]}


def order_becomes(no, bearer, statuses):
    while True:
        status, order = ask("GET", f"/orders/{no}", bearer=bearer)
        if status == 200 and order["status"] in statuses:
            return order["status"]
        time.sleep(random.uniform(0.05, 0.2))


def claim(user, item, bearer):
    """The order number, or nothing: then there was nothing left."""
    key, tries = f"{user}-click", 0
    while True:
        status, answer = ask("POST", f"/items/{item}/token", {}, bearer)
        if status == 200:
            status, answer = ask(
                "POST", f"/items/{item}/claims", {"quantity": 1}, X_Sale_Token=answer["token"], Idempotency_Key=key
            )
        if status == 202 or answer.get("code") == "already_bought":
            return answer["order_no"]
        if answer.get("code") == "sold_out" and tries >= 5 or answer.get("code") == "ended":
            return None
        assert answer.get("code") in ("sold_out", "not_started", "bad_token"), answer
        tries += answer["code"] == "sold_out"
        time.sleep(0.3)


def pay(no, bearer):
    """At the shop's cashier, which takes money once for an order."""
    status, opened = ask("POST", f"/orders/{no}/payments", {"provider": "sandbox"}, bearer)
    if status == 409:
        return False  # its time was over
    assert status == 200, opened
    ask("POST", opened["payment_url"], {"action": "pay"})
    if order_becomes(no, bearer, ("paid", "closed", "refunding", "refunded")) != "paid":
        return False
    _, order = ask("GET", f"/orders/{no}", bearer=bearer)
    do("INSERT OR IGNORE INTO till (order_no, amount) VALUES (?, ?)", no, order["amount"])
    return True


def buyer(n):
    user, wish = f"shop-user-{n}", ("pays", "cancels", "pays", "forgets", "refunds")[n % 5]
    do("INSERT OR REPLACE INTO users VALUES (?, ?)", user, wish)
    bearer = jwt(user)
    (item,) = do("SELECT item_id FROM products ORDER BY sku LIMIT 1 OFFSET ?", n % 2)[0]
    no = claim(user, item, bearer)
    if no is None:
        return
    status = order_becomes(no, bearer, ("unpaid", "void", "closed", "paid", "refunding", "refunded"))
    if status == "unpaid" and wish == "cancels":
        ask("POST", f"/orders/{no}/cancel", {}, bearer)
    elif status == "unpaid" and wish != "forgets" and pay(no, bearer):
        status = "paid"
    if status == "paid" and wish == "refunds":
        # Repeated after an answer that never came, it says that there is nothing to give back any more.
        status, answer = as_operator("POST", f"/admin/orders/{no}/refund", {})
        assert status in (200, 202, 409), answer
        order_becomes(no, bearer, ("refunded",))
        do("UPDATE till SET refunded = 1 WHERE order_no = ?", no)


# --- the story's commands

room = threading.Semaphore(TOGETHER)
coming = []


def comes(n):
    with room:
        try:
            buyer(n)
        except Exception as error:  # told to the story, which fails
            do("INSERT INTO wrong VALUES (?)", f"buyer {n}: {error!r}")


def obey(command):
    global manner
    if "servers" in command:
        servers[:] = command["servers"]
    if "manner" in command:
        manner = command["manner"]
    if "opens" in command:
        return open_sale(command["opens"], command["stock"])
    if "buyers" in command:
        for n in range(*command["buyers"]):
            coming.append(threading.Thread(target=comes, args=[n], daemon=True))
            coming[-1].start()
    return {"coming": sum(one.is_alive() for one in coming)}


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


def listen():
    """The port may be somebody's for a moment after the shop was killed."""
    for _ in range(200):
        try:
            return Server(("127.0.0.1", int(os.environ["SHOP_PORT"])), Hook)
        except OSError:
            time.sleep(0.1)
    sys.exit("the shop's port is taken")


door = listen()
threading.Thread(target=door.serve_forever, daemon=True).start()
print(json.dumps({"open": True}), flush=True)
for line in sys.stdin:
    print(json.dumps(obey(json.loads(line))), flush=True)
