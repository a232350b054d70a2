-- A copy of an order, when it was read from the ledger, and what time it is now. KEYS order
-- Answers {json, read_ms, now_ms}, or an empty list if there is none, or none that says when it was read.
local copy = redis.call('HMGET', KEYS[1], 'o', 't')
if not copy[1] or not copy[2] then return {} end
local time = redis.call('TIME')
return {copy[1], copy[2], string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))}
