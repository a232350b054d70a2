"""A buyer and an operator in Python, with nothing but the client that openapi-python-client makes."""

import os
import time
from urllib.parse import parse_qs, urlsplit

from seckill_client import AuthenticatedClient, Client
from seckill_client.api.admin import get_admin_orders, post_admin_activities
from seckill_client.api.buyer import (
    get_orders_no,
    post_items_id_claims,
    post_items_id_token,
    post_orders_no_payments,
)
from seckill_client.api.payment import post_cashier_txn
from seckill_client.api.public import get_items, get_time
from seckill_client.models import Button, GetAdminOrdersStatus, NewPayment, OrderStatus, Plan, Press, Wish

SERVER, ITEM, SKU = os.environ["SERVER"], int(os.environ["ITEM"]), os.environ["SKU"]

anybody = Client(base_url=SERVER, raise_on_unexpected_status=True)
buyer = AuthenticatedClient(base_url=SERVER, token=os.environ["BUYER"], raise_on_unexpected_status=True)
operator = AuthenticatedClient(base_url=SERVER, token=os.environ["OPERATOR"], raise_on_unexpected_status=True)


def order_after(no, status):
    """The order, as soon as it is something else."""
    while True:
        order = get_orders_no.sync(no, client=buyer)
        if order.status != status:
            return order
        time.sleep(0.05)


now_ms = get_time.sync(client=anybody).now_ms
(item,) = get_items.sync(client=anybody, sku=SKU).items
assert item.id == ITEM and item.attributes["colour"] == "blue", item

token = post_items_id_token.sync(ITEM, client=buyer).token
gate = AuthenticatedClient(base_url=SERVER, token=token, prefix="", auth_header_name="X-Sale-Token")
claimed = post_items_id_claims.sync(ITEM, client=gate, body=Wish(quantity=1), idempotency_key="py-1")
again = post_items_id_claims.sync(ITEM, client=gate, body=Wish(quantity=1), idempotency_key="py-1")
assert claimed.order_no == again.order_no, again
refused = post_items_id_claims.sync(ITEM, client=gate, body=Wish(quantity=1))
assert refused.code == "already_bought" and refused.order_no == claimed.order_no, refused

order = order_after(claimed.order_no, OrderStatus.QUEUED)
assert order.status == OrderStatus.UNPAID and order.amount == item.price and order.sku == SKU, order
assert order.pay_with[0].provider == "sandbox" and len(order.pay_with[0].methods) == 3, order
opened = post_orders_no_payments.sync(order.order_no, client=buyer, body=NewPayment(provider="sandbox"))
cashier = urlsplit(opened.payment_url)
(pass_,) = parse_qs(cashier.query)["token"]
txn = cashier.path.rsplit("/", 1)[-1]
paid = post_cashier_txn.sync(txn, client=anybody, token=pass_, body=Press(action=Button.PAY))
assert paid is not None
order = order_after(order.order_no, OrderStatus.UNPAID)
assert order.status == OrderStatus.PAID and order.payment.provider == "sandbox", order

plan = Plan.from_dict({
    "name": "from Python",
    "opens_at": now_ms + 3_600_000,
    "closes_at": now_ms + 7_200_000,
    "items": [{"name": "Oil", "sku": "PY-1", "price": 1_500, "currency": "KWD", "stock": 5}],
})
made = post_admin_activities.sync(client=operator, body=plan, idempotency_key="py-plan")
assert made.items[0].sku == "PY-1", made
assert post_admin_activities.sync(client=operator, body=plan, idempotency_key="py-plan").id == made.id
found = get_admin_orders.sync(client=operator, sku=SKU, status=GetAdminOrdersStatus.PAID)
assert order.order_no in [one.order_no for one in found.orders], found
print(order.order_no)
