-- Admit a claim again that was acknowledged once and lost. The window does not matter: it was kept
-- when the claim was made.
--
-- KEYS  meta  stock  users  orders  backlog  changed
-- ARGV  item  user  quantity  order_no (8 bytes)  claimed_ms  epoch of the claim  key (8 bytes)
local meta = redis.call('HMGET', KEYS[1], 'epoch', 'shut', 'loading')
if not meta[1] then return {'N'} end
if meta[2] == '2' or meta[3] then return {'F'} end
local mark = redis.call('HGET', KEYS[3], ARGV[2])
if mark then
  if string.sub(mark, 1, 8) == ARGV[4] then return {'K'} end
  return {'B', mark}
end
local left, quantity = tonumber(redis.call('GET', KEYS[2]) or '0'), tonumber(ARGV[3])
if quantity > left then return {'S'} end
mark = ARGV[4] .. struct.pack('<I4I4', quantity, tonumber(ARGV[6])) .. ARGV[7]
redis.call('HSET', KEYS[3], ARGV[2], mark)
redis.call('SET', KEYS[2], left - quantity)
redis.call('HINCRBY', KEYS[1], 'units', quantity)
redis.call('HINCRBY', KEYS[1], 'seq', 1)
redis.call('INCRBY', KEYS[5], 1)
redis.call('XADD', KEYS[4], '*', 'i', ARGV[1], 'b',
  struct.pack('<I8I8I8', tonumber(meta[1]), tonumber(ARGV[5]), 1)
  .. mark .. struct.pack('<I2', #ARGV[2]) .. ARGV[2])
redis.call('ZADD', KEYS[#KEYS], redis.call('ZINCRBY', KEYS[#KEYS], 1, ''), string.match(KEYS[1], '%d+$'))
return {'A'}
