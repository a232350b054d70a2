"""Solves a challenge as a shop's own program would: with ALTCHA's library for Python, and nothing of ours."""

import json
import sys

from altcha import Challenge, Payload, solve_challenge

challenge = Challenge.from_dict(json.load(sys.stdin))
print(Payload(challenge, solve_challenge(challenge)).to_base64())
