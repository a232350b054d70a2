-- Is the item with the server process in which it was loaded? KEYS meta.
-- Answers 0 if not; one that is not here, is being loaded or has ended is no worry.
local meta = redis.call('HMGET', KEYS[1], 'server', 'loading', 'shut')
if not meta[1] or meta[2] or meta[3] == '3' then return 1 end
local server = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') or '0'
return tonumber(string.sub(server, 1, 12), 16) == tonumber(meta[1]) and 1 or 0
