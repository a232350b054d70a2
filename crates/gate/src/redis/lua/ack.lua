-- These entries are in the ledger: forget them. Only what is really removed is taken off the count,
-- so twice is once; how many claims an entry has is written in it.
--
-- KEYS  orders  backlog      ARGV  group  then ids
local gone = 0
for at = 2, #ARGV do
  local entry = redis.call('XRANGE', KEYS[1], ARGV[at], ARGV[at])[1]
  redis.call('XACK', KEYS[1], ARGV[1], ARGV[at])
  if entry then
    redis.call('XDEL', KEYS[1], ARGV[at])
    -- The fields are i, item, b, claims: after epoch and time comes their number.
    gone = gone + struct.unpack('<I8', entry[2][4], 17)
  end
end
if gone > 0 then redis.call('DECRBY', KEYS[2], gone) end
return gone
