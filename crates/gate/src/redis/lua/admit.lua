-- Decide a batch of attempts on one item in one partition.
--
-- KEYS  meta  stock  users  spent  orders  backlog  changed
-- ARGV  item  claims_that_may_wait_here  n  epoch  units  most  keyed  winners
-- Answers {epoch, seq, now_ms, backlog}: everybody is admitted; or the same and n decisions; or an
-- empty list if the item is not here. A decision is a letter and what belongs to it;
-- crates/gate/src/redis/decision.rs reads them.
--
-- While there are units left nearly every batch is of buyers who all win. So the caller has written
-- the log entry as it will be if everybody wins in `epoch`, the last it saw: `winners` is n marks
-- (order_no 8 bytes, quantity 4, epoch 4, key 8, zero: none), each with its user's length and name.
-- `units` are wanted in all, `most` by one of them, `keyed` is 1 if any has a key. Then nothing is
-- left to do per buyer but to look for a mark and to set it. `epoch` 0: no such hope, the epoch is not
-- known or a buyer comes twice.
local meta = redis.call('HMGET', KEYS[1], 'epoch', 'shut', 'opens', 'closes', 'limit', 'seq', 'units')
if not meta[1] then return {} end
local epoch, shut = tonumber(meta[1]), tonumber(meta[2])
local opens, closes = tonumber(meta[3]), tonumber(meta[4])
local limit, seq = tonumber(meta[5]), tonumber(meta[6])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local counts = redis.call('MGET', KEYS[2], KEYS[6])
local left, backlog = tonumber(counts[1] or '0'), tonumber(counts[2] or '0')
local log_max, n = tonumber(ARGV[2]), tonumber(ARGV[3])
local users, hoped = {}, {}
local cut, winners, from = struct.unpack, ARGV[8], 1
for at = 1, n do
  local mark, user
  mark, user, from = cut('<c24I2c0', winners, from)
  users[at], hoped[2 * at - 1], hoped[2 * at] = user, user, mark
end
local marks = redis.call('HMGET', KEYS[3], unpack(users))

local function write(new_marks, units, count, winners)
  -- The first write is one that a full memory refuses, so that either all of this happens or nothing.
  redis.call('HSET', KEYS[3], unpack(new_marks))
  redis.call('MSET', KEYS[2], left - units, KEYS[6], backlog + count)
  redis.call('HSET', KEYS[1], 'seq', seq + 1, 'units', tonumber(meta[7] or '0') + units)
  redis.call('XADD', KEYS[5], '*', 'i', ARGV[1], 'b',
    struct.pack('<I8I8I8', epoch, now, count) .. winners)
  redis.call('ZADD', KEYS[#KEYS], redis.call('ZINCRBY', KEYS[#KEYS], 1, ''), string.match(KEYS[1], '%d+$'))
end

local function everybody_wins()
  local units = tonumber(ARGV[5])
  if tonumber(ARGV[4]) ~= epoch or shut ~= 0 or now < opens or now >= closes
    or tonumber(ARGV[6]) > limit or units > left or backlog + n > log_max
    or (ARGV[7] ~= '0' and redis.call('EXISTS', KEYS[4]) == 1) then return false end
  for at = 1, n do
    if marks[at] then return false end
  end
  write(hoped, units, n, winners)
  return true
end

if everybody_wins() then return {epoch, seq + 1, now, backlog} end

local none = string.rep('\0', 8)
local reply = {epoch, seq, now, backlog}
local mine = {}      -- winners of this very batch
local new_marks = {} -- for HSET
local won = {}       -- for the log
local units = 0
for at = 1, n do
  local user, wanted = users[at], hoped[2 * at]
  local quantity, key = struct.unpack('<I4', wanted, 9), string.sub(wanted, 17, 24)
  local mark = mine[user] or marks[at]
  local spent = key ~= none and redis.call('HGET', KEYS[4], key)
  local decision
  -- What was answered before is true whether or not the window is open; a spent key comes before
  -- what its buyer holds by now.
  if spent then decision = 'R' .. spent
  elseif mark then
    if key ~= none and string.sub(mark, 17, 24) == key then decision = 'R' .. mark
    else decision = 'B' .. mark end
  elseif shut == 3 then decision = 'E'
  elseif shut == 1 then decision = 'P'
  elseif shut == 2 then decision = 'F'
  elseif now < opens then decision = 'N' .. meta[3]
  elseif now >= closes then decision = 'E'
  elseif quantity > limit then decision = 'O' .. meta[5]
  elseif quantity > left - units then decision = 'S' .. (left - units)
  elseif backlog + #won >= log_max then decision = 'L'
  else
    mark = string.sub(wanted, 1, 12) .. struct.pack('<I4', epoch) .. key
    mine[user] = mark
    new_marks[#new_marks + 1] = user
    new_marks[#new_marks + 1] = mark
    won[#won + 1] = mark .. struct.pack('<I2', #user) .. user
    units = units + quantity
    decision = 'A' .. mark
  end
  reply[4 + at] = decision
end
if #won == 0 then return reply end
write(new_marks, units, #won, table.concat(won))
reply[2] = seq + 1
return reply
