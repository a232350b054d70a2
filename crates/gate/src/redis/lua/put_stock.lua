-- The fourth step: everything else. The shard stays shut until all shards have come this far, so that
-- none of them is open beside one that looks empty and is not. Again it changes nothing, for nothing
-- else changes a shard that is being loaded.
--
-- KEYS  meta  stock  adjusts      ARGV  epoch  chunks  opens  closes  limit  left  then adjust_no …
-- Answers 1, or 0 if the load is not ours any more, or has lost marks that were filled in.
local meta = redis.call('HMGET', KEYS[1], 'epoch', 'loading', 'filled')
if meta[1] ~= ARGV[1] or not meta[2] or meta[3] ~= ARGV[2] then return 0 end
redis.call('SET', KEYS[2], ARGV[6])
for at = 7, #ARGV do redis.call('HSET', KEYS[3], ARGV[at], 0) end
local time = redis.call('TIME')
redis.call('HSET', KEYS[1], 'opens', ARGV[3], 'closes', ARGV[4], 'limit', ARGV[5], 'stocked', 1,
  'loading', string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)))
return 1
