-- Stop or resume admitting. KEYS meta  ARGV shut.  Answers 0 if the item is not here. An item that
-- is being loaded stays frozen until the load is done.
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
if redis.call('HEXISTS', KEYS[1], 'loading') == 1 then return 1 end
if redis.call('HGET', KEYS[1], 'shut') ~= ARGV[1] then
  redis.call('HSET', KEYS[1], 'shut', ARGV[1])
  redis.call('HINCRBY', KEYS[1], 'seq', 1)
end
return 1
