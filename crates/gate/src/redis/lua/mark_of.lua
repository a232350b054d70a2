-- What a buyer holds of an item. While the item is being loaded, or is not whole, a mark that is
-- missing says nothing.
--
-- KEYS  meta  users      ARGV  user
-- Answers {mark} or an empty list.
local mark = redis.call('HGET', KEYS[2], ARGV[1])
if mark then return {mark} end
local meta = redis.call('HMGET', KEYS[1], 'epoch', 'shut', 'loading')
if not meta[1] then return redis.error_reply('FROZEN the item is not whole') end
if meta[2] == '2' or meta[3] then return redis.error_reply('FROZEN the item is being loaded') end
return {}
