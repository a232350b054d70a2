-- These entries are in the ledger: forget them. Only what is really removed is taken off the count,
-- so twice is once.
--
-- KEYS  orders  backlog      ARGV  group  then per entry: id  claims
local gone = 0
for at = 2, #ARGV, 2 do
  redis.call('XACK', KEYS[1], ARGV[1], ARGV[at])
  if redis.call('XDEL', KEYS[1], ARGV[at]) == 1 then gone = gone + tonumber(ARGV[at + 1]) end
end
if gone > 0 then redis.call('DECRBY', KEYS[2], gone) end
return gone
