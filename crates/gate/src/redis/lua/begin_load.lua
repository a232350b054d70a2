-- The first of three steps of a load: take the item over for this epoch, frozen and empty. A later
-- epoch, and an item that has ended, are left alone. Spent keys stay spent.
--
-- KEYS  meta  stock  users  adjusts  moves  given      ARGV  epoch  item
-- Answers 1, or 0 if this or a later epoch is here.
local meta = redis.call('HMGET', KEYS[1], 'epoch', 'loading', 'shut')
local epoch, loading = meta[1], meta[2]
if epoch and tonumber(epoch) >= tonumber(ARGV[1]) and not loading then return 0 end
if epoch and tonumber(epoch) > tonumber(ARGV[1]) then return 0 end
if meta[3] == '3' then return 0 end
redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'shut', 2, 'opens', 0, 'closes', 0, 'limit', 0,
  'units', 0, 'loading', 1)
redis.call('HINCRBY', KEYS[1], 'seq', 1)
redis.call('DEL', KEYS[2], KEYS[3], KEYS[4])
-- Moves of an earlier life are over: their units are counted anew.
for _, key in ipairs({KEYS[5], KEYS[6]}) do
  local all = redis.call('HGETALL', key)
  for n = 1, #all, 2 do
    if string.match(all[n + 1], '^(%d+):') == ARGV[2] then redis.call('HDEL', key, all[n]) end
  end
end
return 1
