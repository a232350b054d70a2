-- The second step of a move: add the units here, once per move.
--
-- KEYS  meta  stock  given      ARGV  epoch  move  item  units  now_ms
-- Answers 1 if they are here (now or before), 0 if the item's life is another one by now.
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then return 0 end
if redis.call('HEXISTS', KEYS[1], 'loading') == 1 then return 0 end
if redis.call('HEXISTS', KEYS[3], ARGV[2]) == 0 then
  redis.call('HSET', KEYS[3], ARGV[2], ARGV[3] .. ':' .. ARGV[5])
  redis.call('INCRBY', KEYS[2], ARGV[4])
  redis.call('HINCRBY', KEYS[1], 'seq', 1)
end
return 1
