"""What schemathesis cannot know from the document alone.

A document says what a request looks like, not which orders exist, that a sale closes after it opens, or
that a buyer has one claim per item. So requests that are meant to be good get the names of things the
story made (`CONTRACT_THINGS`, a file of JSON). Requests that are meant to be bad are left as they are.
"""

import itertools
import json
import os
import time

import schemathesis

with open(os.environ["CONTRACT_THINGS"], encoding="utf-8") as file:
    THINGS = json.load(file)

# Of the good requests every fourth keeps the ids that schemathesis thought of: most do not exist.
STRANGE_EVERY = 4
HOUR_MS = 3_600_000
# A format knows no bounds, and ours are the years 2001 to 2199.
A_TIME = "2026-12-01T20:00:00+08:00"
PARTITIONS = 4
ITEMS_MAX = 3
KEY_CHARS_MAX = 255

calls = itertools.count(1)
shop_id = itertools.count(1)
sale_tokens = itertools.cycle(THINGS["sale_tokens"])
tokens = itertools.cycle(THINGS["tokens"])


@schemathesis.hook
def before_load_schema(context, raw_schema):
    """Clients may meet new fields, so the document forbids none. Here a field that is answered and not
    documented is a fault."""
    for schema in raw_schema["components"]["schemas"].values():
        if "properties" in schema:
            schema.setdefault("additionalProperties", False)


@schemathesis.hook
def before_call(context, case, kwargs):
    if case.operation.label in STOPPING and str(case.path_parameters["id"]) == str(MAIN):
        case.path_parameters["id"] = PATHS[case.operation.label]()["id"]
    if case.meta is None or not case.meta.generation.mode.is_positive:
        return
    for name in ("from", "to", "paid_from", "paid_to"):
        if isinstance((case.query or {}).get(name), str) and not case.query[name].isdigit():
            case.query[name] = A_TIME
    fill = QUERIES.get(case.operation.label)
    if fill is not None and case.query:
        fill(case.query)
    if isinstance(case.body, dict):
        case.body = whole_numbers(case.body)
        fill = BODIES.get(case.operation.label)
        if fill is not None:
            fill(case.body)
    call = next(calls)
    if "Idempotency-Key" in (case.headers or {}):
        # The same key is the same claim; with another quantity it is `key_reused`.
        case.headers["Idempotency-Key"] = f"{call}-{case.headers['Idempotency-Key']}"[:KEY_CHARS_MAX]
    if call % STRANGE_EVERY or case.operation.label in TOLD:
        name = PATHS.get(case.operation.label)
        if name is not None:
            ((parameter, value),) = name().items()
            case.path_parameters[parameter] = value
        if case.operation.label == CLAIMS:
            case.headers["X-Sale-Token"] = next(sale_tokens)
        if case.operation.label in CASHIER:
            case.query["token"] = THINGS["cashier"]["token"]
    elif case.operation.label == STOCK:
        # An item that is met by chance may have nothing left to take away.
        case.body["delta"] = 1


def whole_numbers(value):
    """To JSON Schema 1.0 is an integer; to us, as to most, an integer has no fraction."""
    if isinstance(value, dict):
        return {name: whole_numbers(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [whole_numbers(inner) for inner in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def window(plan):
    """A window lies ahead, and closes after it opens."""
    ahead = int(time.time() * 1000) + HOUR_MS
    plan["opens_at"] = ahead if isinstance(plan["opens_at"], int) else iso(ahead)
    later = ahead + HOUR_MS
    plan["closes_at"] = later if isinstance(plan["closes_at"], int) else iso(later)


def iso(ms):
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ms // 1000))


def edit(body):
    """Half a window depends on the other half, and the items of a draft have ids of their own."""
    if body.get("opens_at") is not None or body.get("closes_at") is not None:
        body.update(opens_at=0, closes_at=0)
        window(body)
    body.pop("publish_at", None)
    body.pop("items", None)
    members(body)
    shop_ids(body)


def search(query):
    """One order is asked for alone, so is one payment, and claims on their way by their buyer."""
    if "order_no" in query:
        query.clear()
        query["order_no"] = THINGS["orders"]["show"]
    if "payment" in query:
        query.clear()
        query["payment"] = "nobodys-payment"
    if query.get("status") == "queued":
        query["user_id"] = "contract"
    if "paid_from" in query or "paid_to" in query:
        # The page before ended with an order that was paid.
        query.pop("before", None)


def letters(query):
    """One letter is asked for alone."""
    if "order_no" in query:
        query.clear()
        query["order_no"] = THINGS["dead_letters"]["show"]


def page(query):
    """A cursor is one that we were given."""
    query.pop("cursor", None)


def past_claims(query):
    """A place to go on from is one that we were given."""
    query.pop("after", None)


def shop_ids(plan):
    """The shop gives an id once, and says in one way which picture is the first."""
    if plan.get("external_id") is not None:
        plan["external_id"] = f"contract-{next(shop_id)}"
    for n, item in enumerate(plan.get("items") or []):
        if item.get("sku") is not None:
            item["sku"] = f"contract-{n}"
        if item.get("images") is not None:
            item.pop("image_url", None)


def stream(query):
    """A ticket is one that we were given, and the token does as well."""
    query.pop("ticket", None)


def members(plan):
    """Members come before the others, by a day at most."""
    if plan.get("door"):
        plan["door"].pop("members_from", None)


def lists(query):
    """The list of a sale that there is."""
    if "activity" in query:
        query["activity"] = MAIN


def new_activity(plan):
    window(plan)
    members(plan)
    shop_ids(plan)
    if plan.get("publish_at") is not None:
        plan["publish_at"] = plan["opens_at"]
    # Every comparison looks at all items, and there are many comparisons to come.
    del plan["items"][ITEMS_MAX:]
    for item in plan["items"]:
        # A cluster has no more shards than partitions.
        if "shards" in item:
            item["shards"] = 1 + item["shards"] % PARTITIONS


def imported(body):
    """Each as one that is made alone, and not a thousand of them."""
    del body["activities"][ITEMS_MAX:]
    for plan in body["activities"]:
        new_activity(plan)


def adjustment(body):
    """What is claimed cannot be taken away, and the total has an end. A number to ask again with is
    one that we were given."""
    body["delta"] = -1 if body["delta"] < 0 else 1
    body["adjust_no"] = None


def payment(body):
    """One that is there, in a way that it has; and buyers are not sent just anywhere."""
    body["provider"] = "sandbox"
    if body.get("method") == "app":
        body["method"] = "qr"
    if body.get("return_url") is not None:
        body["return_url"] = "/?order=SK0381966054408192001"


def told(verb, time):
    """The shop tells of an order by the same number in the address and in the body, and of all its money."""

    def fill(body):
        body["order_no"] = THINGS["orders"][verb]
        if isinstance(body.get(time), str):
            body[time] = A_TIME
        if "amount" in body:
            body.update(transaction_id=f"T-{verb}", amount=100, currency="CNY")

    return fill


def by_hand(body):
    if isinstance(body.get("paid_at"), str):
        body["paid_at"] = A_TIME
    body["reference"] = "T-by-hand"
    body.pop("provider_txn", None)


def receipt(body):
    body["receipt"] = THINGS["receipt"]


def endpoint(body):
    """Nothing is posted to whatever address comes to mind: this one is named in the settings, and refuses."""
    if body.get("url") is not None:
        body["url"] = THINGS["webhooks"]["url"]


def since(body):
    if isinstance(body.get("since"), str):
        body["since"] = A_TIME


CLAIMS = "POST /api/v1/items/{id}/claims"
STOCK = "POST /api/v1/admin/items/{id}/stock"
# What the shop tells names the order twice, and means one.
TOLD = {
    "POST /api/v1/orders/{no}/paid",
    "POST /api/v1/orders/{no}/refunded",
    "POST /api/v1/orders/{no}/payment-closed",
}
CASHIER = {"GET /api/v1/cashier/{txn}", "POST /api/v1/cashier/{txn}"}
# Schemathesis learns ids from answers. Were the sale itself stopped, there would be no more claims to try.
MAIN = THINGS["activities"]["show"]
STOPPING = {
    "POST /api/v1/admin/activities/{id}/pause",
    "POST /api/v1/admin/activities/{id}/end",
}

QUERIES = {
    "GET /api/v1/activities": page,
    "GET /api/v1/events": stream,
    "GET /api/v1/ws": stream,
    "GET /api/v1/admin/orders": search,
    "GET /api/v1/admin/dead-letters": letters,
    "GET /api/v1/admin/claims": past_claims,
    "GET /api/v1/admin/lists/{kind}": lists,
    "POST /api/v1/admin/lists/{kind}": lists,
    "DELETE /api/v1/admin/lists/{kind}": lists,
    "POST /api/v1/admin/lists/{kind}/remove": lists,
}

def pause(body):
    """A pause ends before its sale does."""
    if body.get("until") is not None:
        until = int(time.time() * 1000) + 60_000
        body["until"] = until if isinstance(body["until"], int) else iso(until)


def admin_token(body):
    """A pattern for ranges of addresses would be longer than the code that reads them."""
    if body.get("addresses"):
        body["addresses"] = ["10.0.0.0/8", "2001:db8::7"]


BODIES = {
    "POST /api/v1/admin/tokens": admin_token,
    "POST /api/v1/admin/activities": new_activity,
    "POST /api/v1/admin/activities/import": imported,
    "PATCH /api/v1/admin/activities/{id}": edit,
    "POST /api/v1/admin/activities/{id}/pause": pause,
    STOCK: adjustment,
    "POST /api/v1/orders/{no}/payments": payment,
    "POST /api/v1/orders/{no}/paid": told("paid", "paid_at"),
    "POST /api/v1/orders/{no}/refunded": told("refunded", "refunded_at"),
    "POST /api/v1/orders/{no}/payment-closed": told("paid", "closed_at"),
    "POST /api/v1/admin/orders/{no}/mark-paid": by_hand,
    "POST /api/v1/admin/orders/{no}/mark-refunded": by_hand,
    "POST /api/v1/receipts": receipt,
    "POST /api/v1/admin/webhooks": endpoint,
    "PATCH /api/v1/admin/webhooks/{id}": endpoint,
    "POST /api/v1/admin/webhooks/{id}/replay": since,
}


def item():
    return {"id": THINGS["item"]}


def activity(verb):
    return lambda: {"id": THINGS["activities"][verb]}


def order(verb):
    return lambda: {"no": THINGS["orders"][verb]}


def letter(verb):
    return lambda: {"no": THINGS["dead_letters"][verb]}


def webhook(verb):
    return lambda: {"id": THINGS["webhooks"][verb]}


def cashier():
    return {"txn": THINGS["cashier"]["txn"]}


def drawn_item():
    return {"id": THINGS["drawn_item"]}


def no_key():
    """What a retired key has signed is void, and the other operations need it."""
    return {"id": 255}


def token():
    return {"name": next(tokens)}


# Each verb has a thing of its own, so that it is met in the state in which the verb is possible.
PATHS = {
    CLAIMS: item,
    "GET /api/v1/items/{id}": item,
    "GET /api/v1/items/{id}/draw": drawn_item,
    "GET /api/v1/items/{id}/ticket": drawn_item,
    "POST /api/v1/items/{id}/token": item,
    "POST /api/v1/items/{id}/challenge": item,
    "GET /api/v1/activities/{id}": activity("show"),
    "GET /api/v1/orders/{no}": order("show"),
    "POST /api/v1/orders/{no}/cancel": order("cancel"),
    "POST /api/v1/orders/{no}/payments": order("pay"),
    "POST /api/v1/orders/{no}/paid": order("paid"),
    "POST /api/v1/orders/{no}/refunded": order("refunded"),
    "POST /api/v1/orders/{no}/payment-closed": order("paid"),
    "GET /api/v1/cashier/{txn}": cashier,
    "POST /api/v1/cashier/{txn}": cashier,
    "GET /api/v1/admin/activities/{id}": activity("show"),
    "PATCH /api/v1/admin/activities/{id}": activity("edit"),
    "GET /api/v1/admin/activities/{id}/totals": activity("show"),
    "GET /api/v1/admin/activities/{id}/preflight": activity("show"),
    "POST /api/v1/admin/activities/{id}/publish": activity("publish"),
    "POST /api/v1/admin/activities/{id}/pause": activity("pause"),
    "POST /api/v1/admin/activities/{id}/resume": activity("resume"),
    "POST /api/v1/admin/activities/{id}/end": activity("end"),
    "POST /api/v1/admin/activities/{id}/warm": activity("show"),
    "GET /api/v1/admin/items/{id}": item,
    "POST /api/v1/admin/items/{id}/warm": item,
    STOCK: item,
    "GET /api/v1/admin/items/{id}/stock-log": item,
    "GET /api/v1/admin/orders/{no}": order("show"),
    "GET /api/v1/admin/orders/{no}/story": order("show"),
    "POST /api/v1/admin/orders/{no}/refund": order("refund"),
    "POST /api/v1/admin/orders/{no}/cancel": order("cancel"),
    "POST /api/v1/admin/orders/{no}/mark-paid": order("by_hand"),
    "POST /api/v1/admin/orders/{no}/mark-refunded": order("by_hand"),
    "GET /api/v1/admin/dead-letters/{no}": letter("show"),
    "POST /api/v1/admin/dead-letters/{no}/replay": letter("replay"),
    "POST /api/v1/admin/dead-letters/{no}/void": letter("void"),
    "DELETE /api/v1/admin/tokens/{name}": token,
    "DELETE /api/v1/admin/keys/{id}": no_key,
    "GET /api/v1/admin/webhooks/{id}": webhook("show"),
    "PATCH /api/v1/admin/webhooks/{id}": webhook("show"),
    "DELETE /api/v1/admin/webhooks/{id}": webhook("remove"),
    "POST /api/v1/admin/webhooks/{id}/rotate": webhook("show"),
    "POST /api/v1/admin/webhooks/{id}/test": webhook("show"),
    "GET /api/v1/admin/webhooks/{id}/deliveries": webhook("show"),
    "POST /api/v1/admin/webhooks/{id}/replay": webhook("show"),
}
